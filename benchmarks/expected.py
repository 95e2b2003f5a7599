"""What a step of the papers' headline workloads asks of a GPU, and how long it should take there.

Run it as ``python benchmarks/expected.py`` (a few minutes); with ``--write`` the table goes into
docs/numerics.md and docs/expected.csv. Nothing of it is measured on a GPU: it is an estimate.

Each step is run on the CPU as a simulated GPU (``tests/simulated_device.py``), which sees every
operator, the tensors that it reads and writes, and every wait of the host. Where the batch of the
paper does not fit, three small batches are run: an operator's arithmetic and bytes are at most
quadratic in the batch, so three batches give those of the paper's. What is augmented is repeated to
the batch of the paper first, or to as much of it as fits, for which operators are launched depends
on what is drawn. The GRU, which is one operator of cuDNN each way, is counted by hand.

What a run captures in a CUDA graph counts as one launch, and as the operators that it holds.
Launches are counted once the graph is replayed.

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
from collections.abc import Callable, Iterator, Sequence
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

from rl.train import make_update  # noqa: E402
from shared.capture import WARM_UP  # noqa: E402
from shared.command.cells import domain_of  # noqa: E402
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
# Of the network and of the augmentation, and waits.
Counts = tuple[Each, Each, int]
BEFORE_REPLAYS = 1 + WARM_UP + 1  # steps: one that is looked at, and the first replay captures


@dataclass(frozen=True)
class Workload:
    """A step of a row of a table.

    Args:
        name: of method and network.
        cell: domain, paper, table, row and column.
        batches: of which it is counted; one: that of the paper.
        augmented: how many images or clips are augmented in a count; None: the paper's batch.
        captured: part of the step is a CUDA graph, whose operators the host does not launch.
        missing: of the host's work, what is not in it.
    """

    name: str
    cell: tuple[str, str, str, str, str]
    batches: tuple[int, ...]
    augmented: int | None = None
    captured: bool = False
    missing: str = ""

    @functools.cached_property
    def config(self) -> Any:
        """Its configuration."""
        domain, paper, name, row, column = self.cell
        tables = [each for each in domain_of(domain).tables[paper] if "paper" in each.tiers]
        (table,) = (each for each in tables if each.name == name)
        return table.cells("paper", row=row, column=column)[0].config


WORKLOADS = (
    Workload(
        "SimCLR, ResNet-18, CIFAR-10",
        ("vision", "margins", "table-2", "SimCLR", "CIFAR10"),
        (4, 6, 8),
        captured=True,
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
        captured=True,
        missing="the environment",
    ),
    Workload(
        "MMCL INV, S3D, UCF-101",
        ("video", "mmcl", "table-5", "MMCL INV, both views", "RGB linear"),
        (2, 3, 4),
        augmented=4,
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
        launches: how many of them, and of graphs, the host launches.
        waits: how often the host waits for the device.
        host: its seconds.
        bound: lower bound of the step, in seconds.
        device: what the device is likely to take, in seconds.
    """

    workload: Workload
    batch: int
    operations: float
    bytes: float
    operators: int
    launches: float
    waits: int
    host: float
    bound: float
    device: float

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
        sizes = [each.numel() for each in inputs]
        zeros = inputs[0].new_zeros(sum(sizes)).split(sizes)  # one operator, as cuDNN's
        data, *weights = (part.view_as(each) for part, each in zip(zeros, inputs, strict=True))
        return data, None, *weights


@contextmanager
def gru_by_hand() -> Iterator[Each]:
    """Replaces the GRU of the text encoder; gives what each call takes forward and backward."""
    counted: Each = []

    def last_of_cell(cell: torch.nn.GRU, words: Any) -> Tensor:
        data = words.data.to(torch.bfloat16)
        weights = [each.to(torch.bfloat16) for each in cell.parameters()]
        directions, units = 2 if cell.bidirectional else 1, cell.hidden_size
        states = data.new_zeros(directions, int(words.batch_sizes[0]), units)
        # Three gates, each a product with the word and one with the state; twice that backward.
        operations = 2 * 3 * units * (data.shape[1] + units) * len(data) * directions
        size = sum(each.numel() * each.itemsize for each in weights)
        size += len(data) * (data.shape[1] + 4 * units * directions) * data.itemsize
        # A state follows from the one before: each time step of a direction is launched by cuDNN.
        for share in (1, 2):
            inside = len(words.batch_sizes) * directions
            counted.extend([(share * operations / inside, share * size / inside)] * inside)
        last: Tensor = _Cell.apply(data, states, *weights)
        return last

    with mock.patch.object(importlib.import_module("text.encoder"), "_last_of_cell", last_of_cell):
        yield counted


class Parted(steps.Work):
    """Tells the operators of the augmentation from the others.

    Attributes:
        augmentation: of which those are that were launched while ``augmenting``.
    """

    augmenting = False
    latest: "Parted"

    def __init__(self) -> None:
        super().__init__()
        self.augmentation: Each = []
        Parted.latest = self

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        before = len(self.each)
        out = super().__torch_dispatch__(func, types, args, kwargs)
        if Parted.augmenting:
            self.augmentation += self.each[before:]
            del self.each[before:]
        return out


@contextmanager
def augmenting(workload: Workload) -> Iterator[None]:
    """Inside, what is augmented is as many images or clips as the workload says."""
    modules = {"vision": "vision.train", "video": "video.augmentation"}
    if workload.cell[0] not in modules:
        yield
        return
    module = importlib.import_module(modules[workload.cell[0]])
    real, size = module.augment, workload.augmented or workload.config.batch_size

    def augment(pixels: Tensor, *args: Any, samples: Any, **options: Any) -> Tensor:
        samples = np.arange(size) if isinstance(samples, np.ndarray) else torch.arange(size)
        many = torch.cat([pixels] * math.ceil(size / len(pixels)))[:size]
        Parted.augmenting = True
        try:
            out: Tensor = real(many, *args, samples=samples, **options)
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
    with SimulatedDevice() as device:

        @contextmanager
        def waits() -> Iterator[Callable[[], int]]:
            device.waits.clear()
            gru.clear()
            yield lambda: sum(device.waits.values())

        with (
            mock.patch.multiple(steps, DEVICE="cuda", WARM=1, TIMED=1, waits=waits, Work=Parted),
            augmenting(workload),
            mock.patch.object(steps, "on_device", lambda each: device.place(each) == "cuda"),
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
    return work.each, Parted.latest.augmentation, waited


def launches_of(workload: Workload) -> float:
    """How much the host launches in a step once its graphs are replayed."""
    domain, batch = workload.cell[0], workload.batches[0]
    config = dataclasses.replace(workload.config, batch_size=batch)
    torch.manual_seed(0)
    with (
        SimulatedDevice() as device,
        # In place of seconds, what was launched so far.
        mock.patch.multiple(
            steps, DEVICE="cuda", WARM=BEFORE_REPLAYS, TIMED=2, now=device.operators.total
        ),
        augmenting(workload),
        tempfile.TemporaryDirectory() as folder,
    ):
        if domain != "rl":
            return steps.timed(workload.name, config, loop_of(domain, config)).seconds
        agent, replay = steps.rl_agent(config, Path(folder))
        update = make_update(agent, replay, config)
        before = 0
        for step in range(1, 2 * BEFORE_REPLAYS + 3):  # two kinds of updates
            if step == 2 * BEFORE_REPLAYS + 1:
                before = device.operators.total()
            update(replay.draw(batch, config.crop), step)
        replay.delete()
        return (device.operators.total() - before) / 2


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
    if len({len(each) for each in counted.values()}) != 1:
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
    each: float = _median_of_process_time(chain, 9) / work.operators
    return each


def seconds_of_batch(workload: Workload) -> float:
    """The host's time to prepare a batch of the paper's size, on one thread."""
    domain, config = workload.cell[0], workload.config
    if domain == "text":
        tokens = steps.text_tokens(config)
        return _median_of_process_time(lambda: tokens.batch(0, config.batch_size, config.length), 5)
    if domain == "graph":
        from graph.train import views

        graphs = steps.graphs_like_dd(config.batch_size)
        return _median_of_process_time(lambda: list(views(config, graphs, 0)), 3)
    if domain == "video":
        from video.augmentation import gather_clips, sample_clips

        videos = steps.clips_of_noise(config, config.batch_size)
        index, frames = torch.arange(config.batch_size), config.clip_frames

        def cut() -> None:
            sampling = config.sampling
            for start in sample_clips(videos, index, frames, seed=0, epoch=0, sampling=sampling):
                gather_clips(videos, index, start, frames)

        return _median_of_process_time(cut, 3)
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


def expected(workload: Workload) -> Expected:
    """The line of a workload."""
    config = workload.config
    with gru_by_hand() as gru:
        counted = {}
        for batch in workload.batches:
            counted[batch], augmentation, waits = count(workload, batch, gru)
    seen = 2 if workload.cell[0] == "rl" else 1  # steps
    each = at_batch(counted, config.batch_size)
    share = config.batch_size / (workload.augmented or config.batch_size)
    scaled = [(share * work, share * size) for work, size in augmentation]
    operators, every = len([*each, *scaled]) // seen, [*each, *scaled, *gru]
    peak = PEAK[config.precision]
    device = sum(
        max(work / (OF_PEAK * peak), size / (OF_BANDWIDTH * BANDWIDTH), SHORTEST / seen)
        for work, size in every
    )
    launches = launches_of(workload) if workload.captured else operators
    operations = sum(work for work, _ in every)
    return Expected(
        workload,
        config.batch_size,
        operations,
        sum(size for _, size in every),
        operators,
        launches,
        waits,
        launches * seconds_of_launch() + seconds_of_batch(workload),
        operations / peak,
        device,
    )


def as_csv(lines: Sequence[Expected]) -> str:
    """The table as docs/expected.csv."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(
        "workload cell precision batch operations bytes operators launches waits host_seconds "
        "lower_bound_seconds likely_seconds".split()
    )
    for line in lines:
        numbers = (line.operations, line.bytes, line.operators, line.launches, line.waits)
        seconds = (line.host, line.bound, line.likely)
        writer.writerow(
            [
                line.workload.name,
                "/".join(line.workload.cell),
                line.workload.config.precision,
                line.batch,
                *(f"{number:.4g}" for number in (*numbers, *seconds)),
            ]
        )
    return out.getvalue()


def as_page(lines: Sequence[Expected]) -> str:
    """The section of docs/numerics.md."""
    peaks = ", ".join(f"{PEAK[kind] / 1e12:g} in {PEAK_NAMES[kind]}" for kind in PEAK)
    text = f"""
An estimate: no step of this table has run on a GPU. A step's operators, bytes and waits are counted
on a simulated GPU; its time is the longer of the host's and the device's. An operator is given the
longest of its arithmetic at {OF_PEAK:.0%} of the card's peak, its bytes at {OF_BANDWIDTH:.0%} of
its bandwidth, and {SHORTEST * 1e6:g} us. The peak in TFLOP/s is {peaks}, the bandwidth
{BANDWIDTH / 1e12:g} TB/s: {SOURCE}. The lower bound is the arithmetic at the full peak. The host's
work is measured ({losses.machine(1)}): {seconds_of_launch() * 1e6:.2g} us a launch, and the
preparation of the batch. `./reproduce.sh benchmark` measures the same columns on the GPU that it
finds. `docs/expected.csv` has the numbers, `benchmarks/expected.py` computes them.

"""
    columns = "step|precision|batch|GFLOP|GB|operators|launches|waits"
    columns += "|host, ms|bound, ms|likely, ms|limit"
    text += f"| {columns.replace('|', ' | ')} |\n{'|---' * len(columns.split('|'))}|\n"
    for line in lines:
        limit = "host" if line.host > line.device else "device"
        missing = line.workload.missing
        name = line.workload.name + (f" (without {missing})" if missing else "")
        text += (
            f"| {name} | {line.workload.config.precision} | {line.batch} "
            f"| {line.operations / 1e9:.3g} | {line.bytes / 1e9:.3g} | {line.operators} "
            f"| {line.launches:.0f} | {line.waits} | {line.host * 1e3:.3g} "
            f"| {line.bound * 1e3:.2g} | {line.likely * 1e3:.3g} | {limit} |\n"
        )
    return text


def main() -> None:
    """Count, estimate and print; with --write, into the documents."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--write", action="store_true", help="into docs/")
    options = parser.parse_args()
    torch.set_num_threads(1)
    lines = [expected(workload) for workload in WORKLOADS]
    print(as_page(lines))
    if options.write:
        TABLE.write_text(as_csv(lines), encoding="utf-8")
        losses.write_section(HEADING, as_page(lines))


if __name__ == "__main__":
    main()
