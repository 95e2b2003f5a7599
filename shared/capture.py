"""CUDA graphs: a function of tensors is captured once and then launched as a whole.

Launching the many small kernels of a training step or solver one by one takes longer than running
them; a graph launches them all at once. It replays what was captured, on the same memory and with
the same Python numbers, so inputs are copied into tensors of its own, and a number that changes
must stay outside. The captured function must launch the same kernels at every call and must not
wait for the device.
"""

from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor

from shared.distributed import world_size
from shared.switches import graphs_wanted

COMPARED = ("results", "gradients", "changes of networks and buffers")
TOLERANCE = 1e-2  # of a norm, where the order of sums is not fixed
WARM_UP = 3  # calls before a function is captured, in which libraries and optimisers initialise


def can_capture(device: torch.device) -> bool:
    """Whether functions of tensors on the device can be captured at this point.

    They can on a GPU, on a single process, outside of other captures and of tracing by a compiler
    or a transform of :mod:`torch.func`; not with ``SUITE_GRAPHS=0`` in the environment.
    """
    return (
        device.type == "cuda"
        and graphs_wanted()
        and world_size() == 1
        and not torch.cuda.is_current_stream_capturing()
        and not torch.compiler.is_compiling()
        and not torch._C._are_functorch_transforms_active()
    )


class CaptureFailed(RuntimeError):
    """A function could not be captured, or its graph gives other numbers.

    The process cannot continue without graphs: it would keep the memory of the one that failed.
    """


class Captured:
    """A function of tensors as a CUDA graph, after ``WARM_UP`` calls that run eagerly.

    The graph keeps the memory that the function allocates. Its first replay is compared with one
    more eager call, made before the capture, so that the memory of both is not needed at once.

    Args:
        function: of tensors that have the same shapes and types at every call; returns tensors by
            name. It may change other tensors in place, and draw from the device's generator.
        device: where it runs.
        parameters: those whose gradients the function computes after setting ``.grad`` to None.
            After a call ``.grad`` is the gradient of that call; the next call overwrites it.
        changed: returns the other tensors that the function changes in place.
    """

    def __init__(
        self,
        function: Callable[..., dict[str, Tensor]],
        device: torch.device,
        parameters: Iterable[Tensor] = (),
        changed: Callable[[], Iterable[Tensor]] = tuple,
    ) -> None:
        self.function, self.device, self.changed = function, device, changed
        self.parameters = list(parameters)
        self._stream = torch.cuda.Stream(device)
        self._calls = 0
        self._inputs: tuple[Tensor, ...] = ()
        self._outputs: dict[str, Tensor] = {}
        self._gradients: list[Tensor | None] = []
        self._graph: torch.cuda.CUDAGraph | None = None

    def __call__(self, *inputs: Tensor) -> dict[str, Tensor]:
        """Copies of the output tensors; inputs on the host are copied without waiting."""
        with torch.cuda.device(self.device):
            if not self._calls:
                with torch.inference_mode(False):  # otherwise they are read-only outside of it
                    self._inputs = tuple(torch.empty_like(x, device=self.device) for x in inputs)
            self._receive(inputs)
            self._calls += 1
            if self._calls <= WARM_UP:
                return self._run_eagerly()
            if self._graph is None:
                try:
                    return self._first_replay()
                except Exception as error:
                    reason = f"{type(error).__name__}: {error}".splitlines()[0]
                    raise CaptureFailed(f"no CUDA graph ({reason})") from error
            return self._replay(self._graph)

    def _first_replay(self) -> dict[str, Tensor]:
        """Capture the function, and compare the results of the graph with those of the function."""
        changed = list(self.changed())
        before = [tensor.detach().clone() for tensor in changed]
        generator = torch.cuda.get_rng_state(self.device)
        outputs = self._run_eagerly()
        names = list(outputs)  # a graph may return more: outputs that only some calls have
        expected = self._compared_values(outputs, changed, before)
        del outputs
        with torch.no_grad():
            for tensor, value in zip(changed, before, strict=True):
                tensor.copy_(value)
        torch.cuda.set_rng_state(generator, self.device)
        graph = torch.cuda.CUDAGraph()
        # Other threads, such as a loader's that pins memory, may continue.
        with torch.cuda.graph(graph, stream=self._stream, capture_error_mode="thread_local"):
            self._outputs = self.function(*self._inputs)
        self._gradients = [parameter.grad for parameter in self.parameters]
        outputs_of_graph = self._replay(graph)
        actual = self._compared_values(
            {name: outputs_of_graph[name] for name in names}, changed, before
        )
        for what, one, other in zip(COMPARED, actual, expected, strict=True):
            if not (len(one) == len(other) and all(map(_are_equal, one, other))):
                raise RuntimeError(f"its first replay gives other {what} than the step itself")
        self._graph = graph
        return outputs_of_graph

    def _replay(self, graph: torch.cuda.CUDAGraph) -> dict[str, Tensor]:
        graph.replay()
        for parameter, gradient in zip(self.parameters, self._gradients, strict=True):
            parameter.grad = gradient  # an eager step may have replaced it
        return {name: tensor.clone() for name, tensor in self._outputs.items()}

    def _compared_values(
        self, outputs: dict[str, Tensor], changed: Sequence[Tensor], before: Sequence[Tensor]
    ) -> tuple[list[Tensor], ...]:
        """All that a call gives, in the order of ``COMPARED``.

        The gradients are one vector, since some are rounding errors alone, such as that of a bias
        before a batch norm.
        """
        gradients = [
            parameter.grad.flatten() for parameter in self.parameters if parameter.grad is not None
        ]
        moved = [(now.detach() - then).float() for now, then in zip(changed, before, strict=True)]
        return (
            [tensor.detach().clone() for tensor in outputs.values()],
            [torch.cat(gradients)] if gradients else [],
            moved,
        )

    def _receive(self, inputs: tuple[Tensor, ...]) -> None:
        """Copy the inputs into the tensors that the graph reads."""
        for buffer, value in zip(self._inputs, inputs, strict=True):
            if value.shape != buffer.shape or value.dtype != buffer.dtype:
                raise ValueError(
                    f"a captured function takes the same shapes and types at every call, here "
                    f"{tuple(buffer.shape)} {buffer.dtype}; got {tuple(value.shape)} {value.dtype}"
                )
            pinned = value.pin_memory() if value.device.type == "cpu" else value
            buffer.copy_(pinned, non_blocking=True)

    def _run_eagerly(self) -> dict[str, Tensor]:
        """Run the function eagerly on the stream of the capture."""
        current = torch.cuda.current_stream()
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            outputs = self.function(*self._inputs)
        current.wait_stream(self._stream)
        return outputs


def _are_equal(actual: Tensor, expected: Tensor) -> bool:
    """Whether two tensors are equal, up to the order of sums where it is not fixed."""
    if torch.are_deterministic_algorithms_enabled():
        return torch.equal(actual, expected)
    distance = float((actual.double() - expected.double()).norm())
    return distance <= TOLERANCE * (float(expected.double().norm()) + TOLERANCE)
