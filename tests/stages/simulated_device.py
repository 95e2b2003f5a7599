"""A simulated GPU: values are computed on the CPU, but every storage remembers a device.

Inside ``with SimulatedDevice() as device:`` torch says that CUDA is available. What CUDA would
refuse raises RuntimeError: an operator over tensors of two devices, a generator of the host, a wait
or a copy from the host while a graph is captured. What CUDA would wait for is counted in
``device.waits``, by what it is and by the function of this project that asks for it.
``device.operators`` counts what is launched; a graph that is replayed is one of them.

A captured graph does what CUDA's does: capturing changes nothing, and a replay repeats the
operators on the very tensors and with the very numbers of Python that they were captured with.
"""

import contextlib
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

ROOT = Path(__file__).resolve().parents[2]
GPU, HOST = torch.device("cuda", 0), torch.device("cpu")
# Operators that read their result on the host: its size, or whether they succeeded.
WAITING = set(
    "_local_scalar_dense nonzero masked_select _unique2 unique_dim unique_consecutive equal "
    "bincount histc is_nonzero _linalg_check_errors _linalg_svd _linalg_eigh linalg_lstsq "
    "linalg_eig".split()
)
COPIES = {"copy_", "_to_copy"}
INDEXING = {"index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index"}
CONVOLUTIONS = {"convolution", "convolution_backward"}
ON_HOST = {"_pack_padded_sequence"}  # takes lengths, and gives batch sizes, on the host


class Graph:
    """A CUDA graph: operators with their tensors, which :meth:`replay` works on again."""

    def __init__(self, device: "SimulatedDevice") -> None:
        self.device = device
        self.calls: list[tuple[Any, Any, Any, Any]] = []
        # Storages, each as it was before; None if it is the graph's own.
        self.before: dict[int, tuple[Any, Any] | None] = {}

    def call(self, func: Any, args: Any, kwargs: Any, given: list[Tensor]) -> Any:
        """Do what is captured, for its shapes."""
        for each in given:
            storage = _storage(each)
            if storage._cdata not in self.before:
                self.before[storage._cdata] = storage, storage.clone()
        out = _computed(func, args, kwargs)
        self.calls.append((func, args, kwargs, out))
        for each in _tensors(out):
            self.before.setdefault(_storage(each)._cdata, None)
        return out

    def undo(self) -> None:
        """Give tensors the values from before the capture; new ones have none until a replay."""
        for held in self.before.values():
            if held is not None:
                held[0].copy_(held[1])
        for *_, out in self.calls:
            for each in _tensors(out):
                if self.before[_storage(each)._cdata] is None:
                    each.fill_(torch.nan if each.is_floating_point() else 0)

    def replay(self) -> None:
        """Launch everything once more, on the current stream."""
        self.device.operators["graph"] += 1
        with unseen():
            for func, args, kwargs, out in self.calls:
                again = _computed(func, args, kwargs)
                if func.is_view:
                    continue
                for old, new in zip(_tensors(out), _tensors(again), strict=True):
                    if old is not new:
                        old.copy_(new)
        for _, args, kwargs, out in self.calls:
            given = [x for x in _tensors((args, kwargs)) if self.device.place(x) == "cuda"]
            self.device.launch("graph", given, _tensors(out))


@contextlib.contextmanager
def unseen() -> Iterator[None]:
    """Operators inside are the simulation's own."""
    with (
        torch._C.DisableTorchFunction(),
        _disable_current_modes(),
        torch.inference_mode(),  # below autograd
    ):
        yield


class Stream:
    """A CUDA stream: what it launches is done in order, but not in that of other streams."""

    def __init__(self, device: "SimulatedDevice") -> None:
        self.simulated, self.device = device, GPU
        self.launched = 0
        self.seen: dict[int, int] = {}  # by stream, up to which launch of it this one has waited

    def wait_stream(self, other: "Stream") -> None:
        """What is launched from here on comes after all that the other has launched."""
        for stream, launched in {**other.seen, id(other): other.launched}.items():
            self.seen[stream] = max(self.seen.get(stream, 0), launched)

    def knows(self, written: "tuple[Stream, int]") -> bool:
        """Whether something was written before whatever this stream launches next."""
        stream, launched = written
        return stream is self or self.seen.get(id(stream), 0) >= launched

    def is_capturing(self) -> bool:
        """As :attr:`SimulatedDevice.captured`."""
        return self.simulated.captured is not None


class Event:
    """A CUDA event: what was copied to the host before it has arrived once it is synchronised."""

    def belong(self, device: "SimulatedDevice") -> None:
        """Made on a device."""
        self.device = device
        self.copies: list[Tensor] = []
        self.launched = 0

    def record(self, *_: Any) -> None:
        """Note what is on its way."""
        self.copies, self.device.arriving = self.device.arriving, []
        self.launched = self.device.operators.total()

    def synchronize(self) -> None:
        """Let it arrive; the host waits in vain if the device was given nothing else to do."""
        if self.device.captured is not None or self.launched == self.device.operators.total():
            self.device.wait("an event")
        for each in self.copies:
            self.device.put(each, "pinned")


class SimulatedDevice(contextlib.ExitStack):
    """The device, while it is entered.

    Attributes:
        waits: how often the host waited, by reason and by ``file function``.
        operators: how many operators were launched, by name.
        captured: the CUDA graph that is captured, or None.
    """

    def __init__(self) -> None:
        super().__init__()
        self.waits: Counter[tuple[str, str]] = Counter()
        self.operators: Counter[str] = Counter()
        self.captured: Graph | None = None
        self.inside = False  # a call of Python that was given a tensor on the device
        self.arriving: list[Tensor] = []  # on its way to the host
        self.stream = Stream(self)  # on which operators are launched
        self.captured_on: list[Stream] = []
        self._places: dict[int, tuple[StorageWeakRef, str]] = {}
        self._written: dict[int, tuple[StorageWeakRef, tuple[Stream, int]]] = {}

    def place(self, tensor: Tensor) -> str:
        """``cuda``, ``pinned``, ``arriving``, ``free`` (made by torch on the way) or ``host``."""
        held = self._places.get(_storage(tensor)._cdata)
        return held[1] if held and not held[0].expired() else "host"

    def put(self, tensor: Tensor, place: str) -> Tensor:
        """Mark the tensor's storage."""
        storage = _storage(tensor)
        self._places[storage._cdata] = StorageWeakRef(storage), place
        return tensor

    def launch(self, name: str, given: list[Tensor], made: list[Tensor]) -> None:
        """Note an operator of the current stream, and refuse what another may not have written."""
        if self.captured is not None:
            return  # nothing is launched
        stream = self.stream
        stream.launched += 1
        for each in given:
            held = self._written.get(_storage(each)._cdata)
            if held and not held[0].expired() and not stream.knows(held[1]):
                raise RuntimeError(f"{name} before another stream is done, at {_caller()}")
        for each in made:
            storage = _storage(each)
            self._written[storage._cdata] = StorageWeakRef(storage), (stream, stream.launched)

    @contextlib.contextmanager
    def on(self, stream: Stream) -> Iterator[None]:
        """In place of ``torch.cuda.stream``."""
        before, self.stream = self.stream, stream
        try:
            yield
        finally:
            self.stream = before

    def wait(self, why: str) -> None:
        """Count a wait, which is refused while a graph is captured."""
        self.waits[why, _caller()] += 1
        if self.captured is not None:
            raise RuntimeError(f"{why} while a CUDA graph is captured")

    def copied(self, *, asynchronous: bool) -> None:
        """A copy between host and device, which a graph would repeat from the same memory."""
        if not asynchronous or self.captured is not None:
            self.wait("a copy between host and device")

    @contextlib.contextmanager
    def graph(self, graph: Graph, *, stream: Stream | None = None, **_: Any) -> Iterator[None]:
        """In place of ``torch.cuda.graph``: what is inside is captured, and may not wait."""
        if self.captured is not None:
            raise RuntimeError("a CUDA graph is captured already")
        self.captured_on.append(stream or Stream(self))
        state, self.captured = torch.get_rng_state(), graph
        try:
            yield
        finally:
            self.captured = None
            with unseen():
                torch.set_rng_state(state)
                graph.undo()

    def __enter__(self) -> "SimulatedDevice":
        super().__enter__()
        pretended: dict[str, Any] = {
            "is_available": lambda: True,
            "is_initialized": lambda: True,
            "device_count": lambda: 1,
            "current_device": lambda: 0,
            "get_device_name": lambda *_: "simulated",
            "get_device_capability": lambda *_: (9, 0),
            "is_bf16_supported": lambda *_, **__: True,
            "mem_get_info": lambda *_: (80 << 30, 80 << 30),
            "max_memory_allocated": lambda *_: 0,
            "synchronize": lambda *_: self.wait("synchronize"),
            "is_current_stream_capturing": lambda: self.captured is not None,
            "graph": self.graph,
            "CUDAGraph": lambda: Graph(self),
            # A class: annotations name it when a module is imported.
            "Event": type("Event", (Event,), {"__init__": lambda me, *_, **__: me.belong(self)}),
            "get_rng_state": lambda *_: torch.get_rng_state(),
            "set_rng_state": lambda state, *_: torch.set_rng_state(state),
            "Stream": lambda *_: Stream(self),
            "current_stream": lambda *_: self.stream,
            "stream": self.on,
            "device": lambda *_: contextlib.nullcontext(),
        }
        for name, value in pretended.items():
            self.enter_context(mock.patch.object(torch.cuda, name, value))
        # What builds of torch for CUDA would ask the driver, libraries that need one, and what
        # optimisers ask before they look whether they are captured.
        for place, name, answer in (
            (torch.accelerator, "current_stream", lambda *_: self.stream),
            (torch.backends.cudnn, "is_acceptable", lambda *_: False),
            (torch.backends.cuda, "is_built", lambda: True),
        ):
            self.enter_context(mock.patch.object(place, name, answer))
        autocast = torch.autocast.__init__

        def on_cpu(context: Any, device_type: str, *args: Any, **options: Any) -> None:
            autocast(context, "cpu" if device_type == "cuda" else device_type, *args, **options)

        self.enter_context(mock.patch.object(torch.autocast, "__init__", on_cpu))
        grouping: Any = torch._C._group_tensors_by_device_and_dtype

        def grouped(lists: Any, *args: Any) -> Any:  # what optimisers ask, in C++
            return {
                (GPU if self.place(some[0][0][0]) == "cuda" else place, dtype): some
                for (place, dtype), some in grouping(lists, *args).items()
            }

        name = "_group_tensors_by_device_and_dtype"
        self.enter_context(mock.patch.object(torch._C, name, grouped))
        self.enter_context(_Operators(self))
        self.enter_context(_Calls(self))
        return self


class _Operators(TorchDispatchMode):
    """Sees every operator, those of backward passes, too: whose device, and does it wait."""

    def __init__(self, device: SimulatedDevice) -> None:
        super().__init__()
        self.device = device

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, device = kwargs or {}, self.device
        name = func.overloadpacket.__name__
        with torch._C.DisableTorchFunction():
            given = _tensors((args, kwargs))
            places = [device.place(each) for each in given]
        if "arriving" in places:
            raise RuntimeError(f"{name} of a copy that may not have arrived, at {_caller()}")
        on_gpu = "cuda" in places
        if on_gpu and name not in COPIES:
            self.check(name, args, kwargs, given, places)
        elif name == "copy_" and len(given) > 1 and places[0] != places[1]:
            asynchronous = kwargs.get("non_blocking") or any(each is True for each in args[2:])
            pinned = places[1] == "pinned" and asynchronous
            if "cuda" in places and given[1].dim() and places[1] != "free":
                device.copied(asynchronous=pinned)
        graph = device.captured
        out = graph.call(func, args, kwargs, given) if graph else _computed(func, args, kwargs)
        with torch._C.DisableTorchFunction():
            made = _tensors(out)
            if on_gpu and graph is None and not func.is_view:
                device.operators[name] += 1
                on_device = [x for x, place in zip(given, places, strict=True) if place == "cuda"]
                device.launch(name, on_device, made)
            if on_gpu and name != "copy_":
                for each in made[: 1 if name in ON_HOST else None]:
                    device.put(each, "cuda")
            elif not given and (device.inside or torch._C._current_graph_task_id() >= 0):
                for each in made:  # zeros of torch's own, which lie where it needs them
                    device.put(each, "free")
        return out

    def check(
        self, name: str, args: Any, kwargs: Any, given: list[Tensor], places: list[str]
    ) -> None:
        """Raise for a second device or a generator of the host, and count a wait."""
        device = self.device
        if kwargs.get("generator") is not None:
            raise RuntimeError(f"{name} on the device with a generator of the host, at {_caller()}")
        strange = [
            each
            for each, place in zip(given, places, strict=True)
            if place in ("host", "pinned") and each.dim() and each.numel()
        ]
        if strange and name not in ON_HOST:
            if name not in INDEXING or any(each is args[0] for each in strange):
                raise RuntimeError(f"two devices in {name}, at {_caller()}")
            device.wait("an index on the host")
        masks = _tensors(args[1:2])
        if name in INDEXING and any(mask.dtype == torch.bool for mask in masks):
            if name == "index" or args[2].numel() != 1:
                device.wait("an index by a mask")
        elif name in WAITING or (name == "repeat_interleave" and "output_size" not in kwargs):
            device.wait(name)


class _Calls(TorchFunctionMode):
    """Sees Python's calls: ``cuda`` as an argument, and what a tensor says of itself."""

    def __init__(self, device: SimulatedDevice) -> None:
        super().__init__()
        self.device = device

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, device = dict(kwargs or {}), self.device
        name, owner = getattr(func, "__name__", ""), getattr(func, "__self__", None)
        me = args[0] if args and isinstance(args[0], Tensor) else None
        if func is torch.device or name == "_parse_to":  # which only name a device
            return func(*args, **kwargs)
        if me is not None and name == "__get__" and owner in (Tensor.device, Tensor.is_cuda):
            there = device.place(me) == "cuda"
            return there if owner is Tensor.is_cuda else GPU if there else HOST
        if me is not None and name == "pin_memory":
            return device.put(me.clone(), "pinned")
        if me is not None and name == "is_pinned":
            return device.place(me) == "pinned"
        if me is not None and name in ("numpy", "tolist") and device.place(me) == "cuda":
            if name == "numpy":
                raise RuntimeError(f"numpy of a tensor on the device, at {_caller()}")
            device.wait(name)
        if me is not None and name in ("numpy", "tolist") and device.place(me) == "arriving":
            raise RuntimeError(f"{name} of a copy that may not have arrived, at {_caller()}")
        if me is not None and name in ("to", "cuda", "cpu"):
            return self.moved(name, me, args[1:], kwargs)
        if name in ("is_autocast_enabled", "get_autocast_dtype") and args == ("cuda",):
            args = ("cpu",)
        asked = any(map(_is_gpu, (*args, *kwargs.values())))
        if asked and kwargs.get("generator") is not None:
            raise RuntimeError(f"{name} on the device with a generator of the host, at {_caller()}")
        args = tuple(HOST if _is_gpu(each) else each for each in args)
        kwargs = {key: HOST if _is_gpu(each) else each for key, each in kwargs.items()}
        # What a deep copy was given beside the tensor is all that was copied before it.
        given = _tensors(me if name == "__deepcopy__" else (args, kwargs))
        before, device.inside = device.inside, any(device.place(x) == "cuda" for x in given)
        try:
            out = func(*args, **kwargs)
        finally:
            device.inside = before
        inherits = name.startswith("new_") and me is not None and device.place(me) == "cuda"
        if isinstance(out, Tensor) and (asked or inherits):
            if name in ("tensor", "as_tensor", "new_tensor"):
                device.wait("numbers of Python brought to the device")
            device.put(out, "cuda")
        return out

    def moved(self, name: str, tensor: Tensor, args: Any, kwargs: dict[str, Any]) -> Tensor:
        """``tensor.to(...)`` with its copy counted where the host waits for it."""
        device, place = self.device, self.device.place(tensor)
        target = {"cuda": "cuda", "cpu": "host"}.get(name)
        like = [each for each in (*args, kwargs.pop("other", None)) if isinstance(each, Tensor)]
        for each in (*args, kwargs.pop("device", None)):
            if isinstance(each, (str, torch.device)):
                target = "cuda" if _is_gpu(each) else "host"
        for each in like:
            target = "cuda" if device.place(each) == "cuda" else "host"
        asynchronous = kwargs.pop("non_blocking", False) or any(each is True for each in args)
        wants, asynchronous = asynchronous, asynchronous and place == "pinned"
        dtypes = [each for each in args if isinstance(each, torch.dtype)] + [x.dtype for x in like]
        convert: Any = Tensor.to
        out = convert(tensor, *dtypes[:1], **kwargs) if dtypes or kwargs else tensor
        if target is None or (target == "cuda") == (place == "cuda"):
            return out
        if place == "cuda" and wants and device.captured is None:  # to memory that torch pins
            device.arriving.append(device.put(out.clone(), "arriving"))
            return device.arriving[-1]
        device.copied(asynchronous=asynchronous)
        return device.put(out.clone(), target)


def _computed(func: Any, args: Any, kwargs: Any) -> Any:
    """What an operator gives; of bfloat16 the convolutions are done in single precision.

    Most CPUs take ten times as long for them otherwise.
    """
    if func.overloadpacket.__name__ not in CONVOLUTIONS or args[0].dtype != torch.bfloat16:
        return func(*args, **kwargs)
    out = func(*(each.float() if isinstance(each, Tensor) else each for each in args), **kwargs)
    if isinstance(out, Tensor):
        return out.bfloat16()
    return tuple(each if each is None else each.bfloat16() for each in out)


def _tensors(tree: Any) -> list[Tensor]:
    """Those in nested tuples, lists and dictionaries, in a fifth of the time of torch's own."""
    if isinstance(tree, Tensor):
        return [tree]
    if isinstance(tree, dict):
        tree = tree.values()
    elif not isinstance(tree, (tuple, list)):
        return []
    return [tensor for item in tree for tensor in _tensors(item)]


def _storage(tensor: Tensor) -> Any:
    with torch._C.DisableTorchFunction():
        if tensor.layout in (torch.sparse_csr, torch.sparse_csc):
            tensor = tensor.values()
        elif tensor.layout == torch.sparse_coo:
            tensor = tensor._values()
        return tensor.untyped_storage()


def _is_gpu(value: object) -> bool:
    return isinstance(value, (str, torch.device)) and str(value).startswith("cuda")


def _caller() -> str:
    """File and name of the innermost running function of this project, outside this file."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        file = Path(frame.f_code.co_filename)
        if (
            file.is_relative_to(ROOT)
            and "site-packages" not in file.parts
            and file != Path(__file__)
        ):
            # Since Python 3.12 a comprehension has no frame of its own.
            name = re.sub(r"\.<locals>\.<(list|set|dict)comp>$", "", frame.f_code.co_qualname)
            return f"{file.relative_to(ROOT)} {name}"
        frame = frame.f_back
    return "torch"
