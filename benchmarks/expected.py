"""What a step of the papers' headline workloads asks of a GPU, and how long it should take there.

Run it as ``python benchmarks/expected.py`` (a few minutes); with ``--write`` the table goes into
docs/numerics.md and docs/expected.csv. It is an estimate; what a GPU took for some of the steps is
in docs/measured.csv, which is written by hand from ``python benchmarks/steps.py``.

Each step is run on the CPU as a simulated GPU (``tests/simulated_device.py``), which sees every
operator, the tensors that it reads and writes, and every wait of the host. Where the batch of the
paper does not fit, three small batches are run: an operator's arithmetic and bytes are at most
quadratic in the batch, so three batches give those of the paper's. What is augmented is repeated to
the batch of the paper first, or to as much of it as fits, for which operators are launched depends
on what is drawn. The GRU, which is one operator of cuDNN each way, is counted by hand.

Steps are counted without CUDA graphs.

The memory is what the step saves for its backward pass, at most at a time, extrapolated like the
arithmetic, with weights, gradients, optimiser and queues. Libraries' workspaces, the allocator's
fragments and data that lie on the device come on top.

docs/expected.csv has a line for each kind of trained row of every table of the paper's tier: what a
step takes, and what a run of the row does. A kind that cannot be counted has none.

The estimate. An operator takes the longest of: its arithmetic at half of the card's peak, its bytes
at 80% of the bandwidth, and 2.5 us. The device takes their sum, the host as long as its launches
(one is measured here on small tensors) and the preparation of the batch (measured here on one
thread); a step takes the longer of the two. The lower bound is the arithmetic at the full peak.
"""

import argparse
import csv
import dataclasses
import functools
import importlib
import io
import math
import statistics
import sys
import tempfile
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import Tensor

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

import losses  # noqa: E402 (needs the line above)
import steps  # noqa: E402

from shared.command.cells import domain_of, every_table  # noqa: E402
from shared.command.gpu import MEASURED, kind_of, measured, trains  # noqa: E402
from tests.simulated_device import SimulatedDevice  # noqa: E402

PAGE, TABLE = ROOT / "docs/numerics.md", ROOT / "docs/expected.csv"
HEADING = "\n## Expected on an H100\n"
# Operations and bytes a second.
SOURCE = "NVIDIA's H100 data sheet (SXM, without sparsity)"
PEAK = {"bfloat16": 989e12, "float32": 67e12, "float64": 67e12}
PEAK_NAMES = {
    "bfloat16": "bfloat16",
    "float32": "float32 without TF32",
    "float64": "FP64 tensor cores",
}
BANDWIDTH = 3.35e12
OF_PEAK, OF_BANDWIDTH, SHORTEST = 0.5, 0.8, 2.5e-6

Each = list[tuple[float, float]]  # operations and bytes of every operator
# Of the network and of the augmentation, waits, bytes that are saved, and those that always lie.
Counts = tuple[Each, Each, int, int, int]


@dataclass(frozen=True)
class Workload:
    """A step of a row of a table.

    Args:
        name: of method and network.
        cell: domain, paper, table, row and column.
        batches: of which it is counted; one: that of the paper.
        augmented: how many images or clips are augmented in a count; None: the paper's batch.
        missing: of the host's work, what is not in it.
    """

    name: str
    cell: tuple[str, str, str, str, str]
    batches: tuple[int, ...]
    augmented: int | None = None
    missing: str = ""

    @functools.cached_property
    def config(self) -> Any:
        """Its configuration."""
        domain, paper, name, row, column = self.cell
        tables = [
            candidate for candidate in domain_of(domain).tables[paper] if "paper" in candidate.tiers
        ]
        (table,) = (each for each in tables if each.name == name)
        return table.cells("paper", row=row, column=column)[0].config


WORKLOADS = (
    Workload(
        "SimCLR, ResNet-18, CIFAR-10",
        ("vision", "margins", "table-2", "SimCLR", "CIFAR10"),
        (4, 6, 8),
    ),
    Workload(
        "MMCL INV, ResNet-50, ImageNet-100",
        ("vision", "mmcl", "table-2", "MMCL_INV", "top1"),
        (2, 3, 4),
        missing="decoding of JPEG",
    ),
    Workload(
        "quick-thoughts, GRU 2400", ("text", "lmcl", "table-4-bookcorpus", "QT", "MR"), (400,)
    ),
    Workload(
        "CURL, an update",
        ("rl", "lmcl", "table-5", "CURL", "Swingup"),
        (8, 12, 16),
        missing="the environment",
    ),
    Workload(
        "MMCL INV, S3D, UCF-101",
        ("video", "mmcl", "table-5", "MMCL INV, both views", "RGB linear"),
        (2, 3, 4),
        augmented=4,
        missing="the threads that copy clips",
    ),
    Workload("GraphCL, GIN, DD", ("graph", "mmcl", "table-4", "GraphCL", "DD"), (128,)),
)


@dataclass(frozen=True)
class Expected:
    """A line of the table: a step at the paper's batch.

    Args:
        workload: which.
        batch: of the paper.
        operations: floating-point operations.
        bytes: read and written by all operators.
        operators: how many there are.
        waits: how often the host waits for the device.
        host: its seconds.
        bound: lower bound of the step, in seconds.
        device: what the device is likely to take, in seconds.
        memory: bytes of the device.
        state: bytes of weights, gradients, the optimiser's moments and queues, which are in these.
    """

    workload: Workload
    batch: int
    operations: float
    bytes: float
    operators: int
    waits: int
    host: float
    bound: float
    device: float
    memory: float
    state: float

    @property
    def likely(self) -> float:
        """Seconds of the step."""
        return max(self.device, self.host)


class _Cell(torch.autograd.Function):
    """Has the shapes of a GRU, and no arithmetic: it is counted by hand."""

    @staticmethod
    def forward(ctx: Any, data: Tensor, states: Tensor, *weights: Tensor) -> Tensor:
        ctx.save_for_backward(data, *weights)
        return torch.zeros_like(states)

    @staticmethod
    def backward(ctx: Any, _: Tensor) -> tuple[Tensor | None, ...]:
        inputs = ctx.saved_tensors
        sizes = [tensor.numel() for tensor in inputs]
        zeros = inputs[0].new_zeros(sum(sizes)).split(sizes)  # one operator, as cuDNN's
        data, *weights = (part.view_as(each) for part, each in zip(zeros, inputs, strict=True))
        return data, None, *weights


@contextmanager
def gru_by_hand() -> Iterator[Each]:
    """Replaces the GRU of the text encoder; gives what each call takes forward and backward."""
    counted: Each = []

    def last_of_cell(cell: torch.nn.GRU, words: Any) -> Tensor:
        data = words.data.to(torch.bfloat16)
        weights = [parameter.to(torch.bfloat16) for parameter in cell.parameters()]
        directions, units = 2 if cell.bidirectional else 1, cell.hidden_size
        states = data.new_zeros(directions, int(words.batch_sizes[0]), units)
        # Three gates, each a product with the word and one with the state; twice that backward.
        operations = 2 * 3 * units * (data.shape[1] + units) * len(data) * directions
        size = sum(weight.numel() * weight.itemsize for weight in weights)
        size += len(data) * (data.shape[1] + 4 * units * directions) * data.itemsize
        # A state follows from the one before: each time step of a direction is launched by cuDNN.
        for share in (1, 2):
            inside = len(words.batch_sizes) * directions
            counted.extend([(share * operations / inside, share * size / inside)] * inside)
        last: Tensor = _Cell.apply(data, states, *weights)
        return last

    with mock.patch.object(importlib.import_module("text.encoder"), "_last_of_cell", last_of_cell):
        yield counted


class Saved:
    """The bytes that are saved for backward passes, now and at most."""

    def __init__(self) -> None:
        self.held: dict[int, int] = {}  # by storage, how many hold it
        self.bytes = self.most = 0
        self.hooks = torch.autograd.graph.saved_tensors_hooks(self.pack, lambda packed: packed[0])

    def pack(self, tensor: Tensor) -> tuple[Tensor, object]:
        """Keep a tensor as it is, and count it while it is kept."""
        if isinstance(tensor, torch.nn.Parameter) or not steps._is_dense(tensor):
            return tensor, None
        storage = tensor.untyped_storage()
        key, size = storage._cdata, storage.nbytes()
        self.held[key] = self.held.get(key, 0) + 1
        self.bytes += size if self.held[key] == 1 else 0
        self.most = max(self.most, self.bytes)
        holder = Kept()
        weakref.finalize(holder, self.release, key, size)
        return tensor, holder

    def release(self, key: int, size: int) -> None:
        """One holder of a storage is gone."""
        self.held[key] -= 1
        self.bytes -= 0 if self.held[key] else size


class Kept:
    """Lives as long as something is saved."""


class Parted(steps.Work):
    """Tells the operators of the augmentation from the others, and measures what is saved.

    Attributes:
        augmentation: of which those are that were launched while ``augmenting``.
        saved: for the backward passes.
    """

    augmenting = False
    latest: "Parted"
    most = 0  # bytes that the latest has saved

    def __init__(self) -> None:
        super().__init__()
        self.augmentation: Each = []
        self.saved = Saved()
        Parted.latest = self

    def __enter__(self) -> "Parted":
        self.saved.hooks.__enter__()
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self.saved.hooks.__exit__(*error)
        Parted.most = self.saved.most

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        before = len(self.each)
        out = super().__torch_dispatch__(func, types, args, kwargs)
        if Parted.augmenting:
            self.augmentation += self.each[before:]
            del self.each[before:]
        return out


@contextmanager
def augmenting(workload: Workload) -> Iterator[None]:
    """In this context, as many images or clips are augmented as the workload states."""
    modules = {"vision": "vision.train", "video": "video.augmentation"}
    if workload.cell[0] not in modules:
        yield
        return
    module = importlib.import_module(modules[workload.cell[0]])
    real, size = module.augment, workload.augmented or workload.config.batch_size

    def augment(pixels: Tensor, *args: Any, samples: Any, **options: Any) -> Tensor:
        samples = np.arange(size) if isinstance(samples, np.ndarray) else torch.arange(size)
        repeated = torch.cat([pixels] * math.ceil(size / len(pixels)))[:size]
        Parted.augmenting = True
        try:
            out: Tensor = real(repeated, *args, samples=samples, **options)
        finally:
            Parted.augmenting = False
        return out[: len(pixels)]

    with mock.patch.object(module, "augment", augment):
        yield


def count(workload: Workload, batch: int, gru: Each) -> Counts:
    """The operators and waits of a step at a batch, in the order in which they are launched.

    ``gru`` is emptied at its beginning.
    """
    domain = workload.cell[0]
    config = dataclasses.replace(workload.config, batch_size=batch)
    torch.manual_seed(0)
    tracked: list[Any] = []

    def track(run: Any, **objects: Any) -> int:
        tracked.extend(objects.values())
        return 0

    with SimulatedDevice() as device:

        @contextmanager
        def waits() -> Iterator[Callable[[], int]]:
            device.waits.clear()
            gru.clear()
            yield lambda: sum(device.waits.values())

        with (
            mock.patch.multiple(steps, DEVICE="cuda", WARM=1, TIMED=1, waits=waits, Work=Parted),
            augmenting(workload),
            mock.patch.object(steps, "on_device", lambda tensor: device.place(tensor) == "cuda"),
            mock.patch.object(steps.TimedRun, "track", track),
            tempfile.TemporaryDirectory() as folder,
        ):
            if domain == "rl":
                agent, replay = steps.rl_agent(config, Path(folder))
                agent.update(replay.batch(replay.draw(batch, config.crop), config.crop), 2)
                work, waited = steps.rl_work(agent, replay, config)
                replay.delete()
            else:
                loop = loop_of(domain, config)
                measured = steps.timed(workload.name, config, loop)
                work, waited = measured.work, measured.waits
    if waited is None:
        raise RuntimeError("the simulated device counted no waits")
    resident = sum(bytes_of(item) for item in (tracked if domain != "rl" else [agent]))
    return work.each, Parted.latest.augmentation, waited, Parted.most, resident


def bytes_of(item: Any) -> int:
    """Bytes of a module's weights and buffers, and of gradients and two moments of Adam."""
    if not isinstance(item, torch.nn.Module):
        return 0
    trained = sum(parameter.nbytes for parameter in item.parameters() if parameter.requires_grad)
    state = {id(tensor): tensor.nbytes for tensor in (*item.parameters(), *item.buffers())}
    return 3 * trained + sum(state.values())


def loop_of(domain: str, config: Any) -> steps.Loop:
    """A training loop of a few steps."""
    if domain == "graph":
        return steps.graph_loop(config, config.batch_size)
    loops = {"vision": steps.vision_loop, "text": steps.text_loop, "video": steps.video_loop}
    return loops[domain](config)


def at_batch(counted: dict[int, Each], batch: int) -> Each:
    """Each operator's work at another batch: the parabola through those that were counted.

    Raises:
        RuntimeError: the batches do not launch the same operators.
    """
    if batch in counted:
        return counted[batch]
    if len({len(operators) for operators in counted.values()}) != 1:
        raise RuntimeError(f"batches {list(counted)} launch different numbers of operators")
    share = {
        one: math.prod((batch - other) / (one - other) for other in counted if other != one)
        for one in counted
    }
    return [
        (
            sum(share[one] * work[0] for one, work in zip(counted, works, strict=True)),
            sum(share[one] * work[1] for one, work in zip(counted, works, strict=True)),
        )
        for works in zip(*counted.values(), strict=True)
    ]


@functools.cache
def seconds_of_launch() -> float:
    """The host's time for an operator, forward and backward, on tensors too small to matter."""
    weight = torch.randn(8, 8, requires_grad=True)

    def chain() -> None:
        x = torch.ones(8, 8)
        for _ in range(200):
            x = torch.tanh(x @ weight + 1)
        x.sum().backward()

    with steps.Work() as work:
        chain()
    seconds: float = _median_of_process_time(chain, 9) / work.operators
    return seconds


def seconds_of_batch(workload: Workload) -> float:
    """The host's time to prepare a batch of the paper's size, on one thread."""
    domain, config = workload.cell[0], workload.config
    if domain == "text":
        tokens = steps.text_tokens(config)
        return _median_of_process_time(lambda: tokens.batch(0, config.batch_size, config.length), 5)
    if domain == "graph":
        from graph.data import layout
        from graph.train import kept_features, views

        graphs = steps.graphs_like(config.dataset, config.batch_size)
        (_, by_row), graph_layout = kept_features(config, graphs, "cpu"), layout(graphs)
        return _median_of_process_time(lambda: list(views(config, by_row, 0, graph_layout)), 3)
    if domain == "video":
        from video.loading import _Buffer, _submit_copies

        # Of the main thread: those that copy clips work beside it.
        videos, index = steps.clips_of_noise(config, 16), torch.arange(config.batch_size) % 16
        shape = (2, len(index), config.clip_frames, *videos.frames.shape[1:])
        buffer = _Buffer(torch.zeros(shape, dtype=torch.uint8), torch.device("cpu"))
        times = []
        with ThreadPoolExecutor(1) as pool:
            for epoch in range(4):
                start = time.thread_time()
                batch = _submit_copies(config, videos, index, epoch, buffer, pool)
                times.append(time.thread_time() - start)
                for part in batch.parts:
                    part.result()
        return statistics.median(times[1:])
    if domain == "rl":
        with tempfile.TemporaryDirectory() as folder:
            small = dataclasses.replace(config, batch_size=16)
            _, replay = steps.rl_agent(small, Path(folder))
            seconds = _median_of_process_time(
                lambda: replay.draw(config.batch_size, config.crop), 5
            )
            replay.delete()
        return seconds
    return 0.0  # vision: the images are on the device


def _median_of_process_time(function: Callable[[], object], repeats: int) -> float:
    function()
    times = []
    for _ in range(repeats):
        start = time.process_time()
        function()
        times.append(time.process_time() - start)
    return statistics.median(times)


def expected(workload: Workload, sizes: Sequence[int] = ()) -> list[Expected]:
    """The lines of a workload, one for each of its batches in full; default: the paper's."""
    config, lines = workload.config, []
    with gru_by_hand() as gru:
        counted, saved, resident = {}, {}, 0
        for batch in workload.batches:
            counted[batch], augmentation, waits, most, resident = count(workload, batch, gru)
            saved[batch] = [(float(most), 0.0)]
    seen = 2 if workload.cell[0] == "rl" else 1  # steps
    for size in sizes or (config.batch_size,):
        operations_of_step = at_batch(counted, size)
        share = size / (workload.augmented or config.batch_size)
        scaled = [(share * work, share * nbytes) for work, nbytes in augmentation]
        operators, costs = (
            len([*operations_of_step, *scaled]) // seen,
            [*operations_of_step, *scaled, *gru],
        )
        peak = PEAK[config.precision]
        device = sum(
            max(work / (OF_PEAK * peak), nbytes / (OF_BANDWIDTH * BANDWIDTH), SHORTEST / seen)
            for work, nbytes in costs
        )
        operations = sum(work for work, _ in costs)
        ((memory, _),) = at_batch(saved, size)
        lines.append(
            Expected(
                workload,
                size,
                operations,
                sum(nbytes for _, nbytes in costs),
                operators,
                waits,
                operators * seconds_of_launch() + seconds_of_batch(workload),
                operations / peak,
                device,
                memory + resident,
                resident,
            )
        )
    return lines


def as_csv(lines: Sequence[Expected]) -> str:
    """The table as docs/expected.csv."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(
        "workload cell precision batch operations bytes operators waits host_seconds "
        "lower_bound_seconds likely_seconds peak_bytes state_bytes kind".split()
    )
    for line in lines:
        numbers = (line.operations, line.bytes, line.operators, line.waits)
        seconds = (line.host, line.bound, line.likely, line.memory, line.state)
        kind = kind_of(line.workload.cell[0], line.workload.config, batch=line.batch)
        writer.writerow(
            [
                line.workload.name,
                "/".join(line.workload.cell),
                line.workload.config.precision,
                line.batch,
                *(f"{number:.4g}" for number in (*numbers, *seconds)),
                kind,
            ]
        )
    return out.getvalue()


def as_page(lines: Sequence[Expected]) -> str:
    """The section of docs/numerics.md."""
    peaks = ", ".join(f"{PEAK[kind] / 1e12:g} in {PEAK_NAMES[kind]}" for kind in PEAK)
    text = f"""
An estimate, beside what one GPU took. A step's operators, bytes and waits are counted on a
simulated GPU; its time is the longer of the host's and the device's. An operator is given the
longest of its arithmetic at {OF_PEAK:.0%} of the card's peak, its bytes at {OF_BANDWIDTH:.0%} of
its bandwidth, and {SHORTEST * 1e6:g} us. The peak in TFLOP/s is {peaks}, the bandwidth
{BANDWIDTH / 1e12:g} TB/s: {SOURCE}. The lower bound is the arithmetic at the full peak. The host's
work is measured ({losses.machine(1)}): {seconds_of_launch() * 1e6:.2g} us a launch, and the
preparation of the batch. `./reproduce.sh benchmark` measures the same columns on the GPU that it
finds; the last two columns are what it said on an {measured_on()}. `docs/expected.csv` has the
estimates, and a line for each kind of trained row, and `docs/measured.csv` what was measured;
`plan --device h100` scales a domain's estimates by what its step took, with graphs, over its
estimate. `benchmarks/expected.py` computes them. The memory is what a step saves for its backward
pass, with weights, gradients, optimiser and queues; workspaces and data on the device come on top.

"""
    columns = "step|precision|batch|GFLOP|GB|operators|waits"
    columns += "|host, ms|bound, ms|likely, ms|limit|memory, GB|took, ms|with graphs"
    text += f"| {columns.replace('|', ' | ')} |\n{'|---' * len(columns.split('|'))}|\n"
    seconds, eager = measured(), measured(graphs=False)
    for line in lines:
        limit = "host" if line.host > line.device else "device"
        missing = line.workload.missing
        name = line.workload.name + (f" (without {missing})" if missing else "")
        text += (
            f"| {name} | {line.workload.config.precision} | {line.batch} "
            f"| {line.operations / 1e9:.3g} | {line.bytes / 1e9:.3g} | {line.operators} "
            f"| {line.waits} | {line.host * 1e3:.3g} | {line.bound * 1e3:.2g} "
            f"| {line.likely * 1e3:.3g} | {limit} | {line.memory / 1e9:.3g} "
            f"| {_milliseconds(eager, line)} | {_milliseconds(seconds, line)} |\n"
        )
    return text


def _milliseconds(seconds: dict[str, float], line: Expected) -> str:
    name = line.workload.name
    return f"{seconds[name] * 1e3:.3g}" if name in seconds else "\u2013"


def measured_on() -> str:
    """The GPU of docs/measured.csv and torch's version there."""
    with MEASURED.open(newline="") as stream:
        first = next(csv.DictReader(stream))
    return f"{first['device']} (torch {first['torch']})"


def main() -> None:
    """Count, estimate and print; with --write, into the documents."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--write", action="store_true", help="into docs/")
    options = parser.parse_args()
    torch.set_num_threads(1)
    lines = [line for workload in WORKLOADS for line in expected(workload)]
    print(as_page(lines))
    if options.write:
        losses.write_section(HEADING, as_page(lines))
    known = {kind_of(line.workload.cell[0], line.workload.config) for line in lines}
    all_lines = list(lines)
    for workload, sizes in others():
        start = time.monotonic()
        left = [size for size in sizes if _kind(workload, size) not in known]
        try:
            all_lines += expected(workload, left) if left else []
        except Exception as error:  # it has no line, and is not estimated
            print(f"{type(error).__name__}: {error}".splitlines()[0])
        print(f"{workload.name}, {left}: {time.monotonic() - start:.0f} s", flush=True)
        if options.write:
            TABLE.write_text(as_csv(all_lines), encoding="utf-8")


def _kind(workload: Workload, batch: int) -> str:
    return kind_of(workload.cell[0], workload.config, batch=batch)


def others() -> list[tuple[Workload, list[int]]]:
    """A workload for each kind of trained row but for its batch, with all of its batches."""
    workloads: dict[str, tuple[Workload, list[int]]] = {}
    for table in every_table():
        for cell in table.cells("paper") if "paper" in table.tiers else ():
            config: Any = cell.config
            if not trains(config):
                continue
            key = kind_of(cell.domain, config, batch=0)
            if key not in workloads:
                address = (cell.domain, table.paper, table.name, cell.row, cell.column)
                small = (config.batch_size,) if cell.domain in ("text", "graph") else (2, 4)
                small = {"rl": (8, 16), "video": (4, 6)}.get(cell.domain, small)
                augmented = 4 if cell.domain == "video" else None
                workloads[key] = Workload(key, address, small, augmented), []
            sizes = workloads[key][1]
            sizes += [config.batch_size] if config.batch_size not in sizes else []
    return list(workloads.values())


if __name__ == "__main__":
    main()
