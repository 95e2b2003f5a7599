"""CUDA graphs: a function of tensors is recorded once, and launched as a whole from then on.

A training step or a solver of many small kernels takes as long as their launches, one by one. A
graph is launched at once. It repeats what was recorded with the memory and the numbers of then:
inputs are copied into tensors of its own, and a number of Python keeps its value. What is recorded
must be launched alike at every call and must not wait for the device.
"""

from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from shared.distributed import world_size

WARM_UP = 3  # calls before a function is recorded, in which libraries and optimisers get ready


def can_be_recorded(device: torch.device) -> bool:
    """Whether functions of tensors on the device can be recorded here and now.

    That is so on a GPU, in one process, outside of another recording, and where the tensors are
    seen by nobody else: neither a compiler nor a transform of :mod:`torch.func`.
    """
    return (
        device.type == "cuda"
        and world_size() == 1
        and not torch.cuda.is_current_stream_capturing()
        and not torch.compiler.is_compiling()
        and not torch._C._are_functorch_transforms_active()
    )


class Captured:
    """A function of tensors as a CUDA graph, after ``WARM_UP`` calls that run as they are.

    Memory: what the function allocates is kept for the graph, beside what is used outside of it.

    Args:
        function: of tensors that have the same shapes and types at every call; returns tensors by
            name. It may change other tensors in place, and draw from the device's generator.
        device: where it runs.
        parameters: those whose gradients it makes anew. After each call ``.grad`` is that of the
            call, and it is overwritten by the next.
    """

    def __init__(
        self,
        function: Callable[..., dict[str, Tensor]],
        device: torch.device,
        parameters: Iterable[Tensor] = (),
    ) -> None:
        self.function, self.device = function, device
        self.parameters = list(parameters)
        self._stream = torch.cuda.Stream(device)
        self._calls = 0
        self._inputs: tuple[Tensor, ...] = ()
        self._outputs: dict[str, Tensor] = {}
        self._gradients: list[Tensor | None] = []
        self._graph: torch.cuda.CUDAGraph | None = None

    def __call__(self, *given: Tensor) -> dict[str, Tensor]:
        """The function's tensors, which are the caller's to keep.

        Args:
            given: on the device, or on the host, from where nobody waits for them.

        Raises:
            ValueError: tensors of other shapes or types than at the first call.
        """
        with torch.cuda.device(self.device):
            if not self._calls:
                with torch.inference_mode(False):  # or they could not be written to outside of it
                    self._inputs = tuple(torch.empty_like(x, device=self.device) for x in given)
            self._receive(given)
            self._calls += 1
            if self._calls <= WARM_UP:
                return self._aside()
            if self._graph is None:
                self._graph = torch.cuda.CUDAGraph()
                # Other threads, such as a loader's that pins memory, may go on meanwhile.
                with torch.cuda.graph(
                    self._graph, stream=self._stream, capture_error_mode="thread_local"
                ):
                    self._outputs = self.function(*self._inputs)
                self._gradients = [each.grad for each in self.parameters]
            self._graph.replay()
            for parameter, gradient in zip(self.parameters, self._gradients, strict=True):
                parameter.grad = gradient  # a call outside of the graph has put another there
            return {name: each.clone() for name, each in self._outputs.items()}

    def _receive(self, given: tuple[Tensor, ...]) -> None:
        """Copy the inputs to where the graph reads them."""
        for mine, each in zip(self._inputs, given, strict=True):
            if each.shape != mine.shape or each.dtype != mine.dtype:
                raise ValueError(
                    f"a captured function takes the same shapes and types at every call, here "
                    f"{tuple(mine.shape)} {mine.dtype}; got {tuple(each.shape)} {each.dtype}"
                )
            mine.copy_(each.pin_memory() if each.device.type == "cpu" else each, non_blocking=True)

    def _aside(self) -> dict[str, Tensor]:
        """Run the function as it is, on the stream that the graph is recorded on."""
        current = torch.cuda.current_stream()
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            outputs = self.function(*self._inputs)
        current.wait_stream(self._stream)
        return outputs
