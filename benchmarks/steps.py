"""One training step of each domain: its time, its arithmetic, and the share of the machine's peak.

Run it as ``./reproduce.sh benchmark``, or as ``python benchmarks/steps.py [NAME ...]``. What is
timed are the domains' own training loops on random data of the real shape, after a few steps to
warm up, without waiting for the device in between. On a GPU the networks are those of the papers;
on a CPU small ones, which say so in their names.

Printed for each step: seconds (mean over the timed steps), floating-point operations (torch's
counter, which sees products and convolutions), operators that are launched, and the share of the
peak. The peak is what a product of two large matrices reaches on this machine, in the precision of
the step and with as many threads. A GRU on a GPU is one operator that the counter does not know;
its arithmetic is counted on the CPU for a few sentences and scaled.
"""

import argparse
import dataclasses
import functools
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from shared.experiment.runs import Run
from shared.precision import without_tf32

ON_GPU = torch.cuda.is_available()
DEVICE = "cuda" if ON_GPU else "cpu"
WARM, TIMED = (10, 40) if ON_GPU else (1, 3)  # steps
SIDE = 8192 if ON_GPU else 1024  # of the matrices whose product gives the peak
DTYPES = {"float64": torch.float64, "float32": torch.float32, "bfloat16": torch.bfloat16}


@dataclass(frozen=True)
class Step:
    """What a training step takes.

    Args:
        name: of domain, method and network.
        precision: of its products.
        seconds: of the step.
        operations: floating-point operations, as torch counts them.
        operators: how many are launched.
    """

    name: str
    precision: str
    seconds: float
    operations: float
    operators: int


def product_operations(first: Any, second: Any, *, out_val: Any = None, **_: Any) -> int:
    """Floating-point operations of a matrix product, of a sparse one those of its entries alone."""
    entries = first._nnz() if first.layout != torch.strided else first.numel()
    return 2 * int(entries) * int(second.shape[1])


product_operations._get_raw = True  # type: ignore[attr-defined]  # tensors, not their shapes


def operation_counter() -> FlopCounterMode:
    """Torch's counter, which would take sparse matrices for dense ones."""
    counted: Any = product_operations
    return FlopCounterMode(display=False, custom_mapping={torch.ops.aten.mm: counted})


class Operators(TorchDispatchMode):
    """Counts the operators that reach the device's kernels."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return func(*args, **(kwargs or {}))


class Finished(Exception):
    """The loop was timed."""


class TimedRun(Run):
    """A run that times the steps of its loop, then leaves it; it writes nothing.

    Attributes:
        measured: seconds, floating-point operations and operators of a step, once timed.
    """

    measured: tuple[float, float, int]

    def track(self, **objects: Any) -> int:
        """There is nothing to resume."""
        return 0

    def record_data(self, **fingerprints: str) -> None:
        """There is no record to note them in."""

    def steps(self, total: int, what: str, **options: Any) -> Iterator[int]:
        """A few steps to warm up, those that are timed, one that is counted."""
        step = iter(range(total))
        for _ in range(WARM):
            yield next(step)
        start = now()
        for _ in range(TIMED):
            yield next(step)
        seconds = (now() - start) / TIMED
        with operation_counter() as counter, Operators() as operators:
            yield next(step)
        self.measured = seconds, float(counter.get_total_flops()), operators.count
        raise Finished


def now() -> float:
    """Seconds, once the device has done all that it was given."""
    if ON_GPU:
        torch.cuda.synchronize()
    return time.perf_counter()


def timed(name: str, precision: str, train: Callable[[Run], object], config: Any) -> Step:
    """The step of a training loop.

    Args:
        name: of the step.
        precision: of its products.
        train: calls ``run.steps`` once.
        config: of the run.
    """
    with tempfile.TemporaryDirectory() as folder:
        run = TimedRun(Path(folder), config)
        try:
            train(run)
        except Finished:
            return Step(name, precision, *run.measured)
    raise RuntimeError(f"{name}: the loop ended before {WARM + TIMED + 1} steps")


def vision() -> Step:
    """SimCLR on images of CIFAR-10's size."""
    from vision.config import Config
    from vision.data import Images
    from vision.train import pretrain

    config, name = Config(batch_size=256, warmup_epochs=0.0), "vision: SimCLR, ResNet-18, B = 256"
    if not ON_GPU:
        config = dataclasses.replace(config, backbone="resnet8", stem="strided", batch_size=64)
        name = "vision: SimCLR, ResNet-8, B = 64"
    count = 4 * config.batch_size
    pixels = torch.randint(0, 256, (count, 3, 32, 32), dtype=torch.uint8)
    images = Images(pixels, torch.zeros(count, dtype=torch.int64))
    colours = {"mean": (0.5, 0.5, 0.5), "std": (0.5, 0.5, 0.5)}
    config = dataclasses.replace(config, epochs=100)
    return timed(
        name, config.precision, lambda run: pretrain(config, images, run, **colours), config
    )


def text() -> Step:
    """quick-thoughts' GRU on sentences of random words."""
    from text.config import Config
    from text.encoder import QuickThought
    from text.tokens import Tokens
    from text.train import pretrain, shape_of

    config, name = Config(epochs=100, steps=None), "text: quick-thoughts, GRU 2400, B = 400"
    if not ON_GPU:
        config = dataclasses.replace(config, batch_size=100, hidden=128, embedding=128)
        name = "text: quick-thoughts, GRU 128, B = 100"
    generator = np.random.default_rng(0)
    lengths = generator.geometric(1 / 16, 4 * config.batch_size)
    offsets = np.concatenate([[0], lengths.cumsum()]).astype(np.int64)
    ids = generator.integers(2, config.vocabulary, offsets[-1]).astype(np.int32)
    tokens = Tokens(ids, offsets, np.zeros(len(lengths), dtype=np.int32))
    step = timed(
        name,
        config.precision,
        lambda run: pretrain(config, tokens, run, words=config.vocabulary),
        config,
    )
    few = 8
    batch = tokens.batch(0, few, config.length)
    with operation_counter() as counter:
        f, g = QuickThought(shape_of(config, config.vocabulary))(batch.ids, batch.mask)
        (f.sum() + g.sum()).backward()
    operations = counter.get_total_flops() * config.batch_size / few
    return dataclasses.replace(step, operations=max(operations, step.operations))


def rl() -> Step:
    """CURL's update of the whole agent; on a GPU as captured graphs."""
    from rl.agent import Agent
    from rl.config import Config
    from rl.replay import Replay
    from rl.train import make_update

    config, name = Config(batch_size=512), "rl: CURL's update, B = 512"
    if not ON_GPU:
        config = dataclasses.replace(config, batch_size=32)
        name = "rl: CURL's update, B = 32"
    generator = np.random.default_rng(0)
    count, shape = 10 * config.batch_size, (3, config.frame_size, config.frame_size)
    with tempfile.TemporaryDirectory() as folder:
        replay = Replay(
            Path(folder) / "replay",
            count,
            task=config.task,
            frame_size=config.frame_size,
            stack=config.stack,
            action_dimensions=1,
            device=torch.device(DEVICE),
        )
        for place in range(count):
            if place % (config.episode_steps // config.action_repeat) == 0:
                replay.begin(generator.integers(256, size=shape, dtype=np.uint8))
            frame = generator.integers(256, size=shape, dtype=np.uint8)
            replay.add(generator.uniform(-1, 1, 1).astype(np.float32), 1.0, frame)
        agent = Agent(config, 1, torch.device(DEVICE))
        update = make_update(agent, replay, config)

        def updates(first: int, last: int) -> None:
            for step in range(first, last):
                update(replay.draw(config.batch_size, config.crop), step)

        updates(1, 1 + 2 * WARM)
        start = now()
        updates(1 + 2 * WARM, 1 + 2 * WARM + 2 * TIMED)
        seconds = (now() - start) / (2 * TIMED)
        # The mean of two updates: every second one trains the actor, too.
        with operation_counter() as counter, Operators() as operators:
            for step in (1, 2):
                draw = replay.draw(config.batch_size, config.crop)
                agent.update(replay.batch(draw, config.crop), step)
        replay.delete()
    return Step(name, "float32", seconds, counter.get_total_flops() / 2, operators.count // 2)


def graph() -> Step:
    """GraphCL on random graphs of DD's number, mean size and labels."""
    from graph import train
    from graph.config import Config
    from graph.data import Graphs

    config = dataclasses.replace(Config(), dataset="DD", epochs=1000)
    count, nodes, edges, labels = 1178 if ON_GPU else 512, 284, 716, 89
    ends = torch.randint(nodes, (2, count, edges))
    ends = (ends + nodes * torch.arange(count)[:, None]).flatten(1)
    x = torch.eye(labels)[torch.randint(labels, (count * nodes,))]
    batch = torch.arange(count).repeat_interleave(nodes)
    graphs = Graphs(x, torch.cat([ends, ends.flip(0)], dim=1), batch, torch.arange(count) % 2)
    with (
        mock.patch.object(train, "load", return_value=graphs),
        mock.patch.object(train, "fingerprint", return_value=""),
    ):
        name = f"graph: GraphCL, an epoch of {count} graphs like DD's"
        return timed(name, config.precision, lambda run: train.measure(config, run), config)


def video() -> Step:
    """SimCLR with S3D on clips of noise."""
    from video.config import Config
    from video.data import Video, Videos, stored_side
    from video.train import pretrain

    config = Config(method="simclr", epochs=100)
    name = f"video: SimCLR, S3D, clips of {config.clip_frames} x {config.size}^2"
    if not ON_GPU:
        small: dict[str, Any] = {"clip_frames": 8, "size": 48, "width": 0.25, "batch_size": 16}
        config = dataclasses.replace(config, **small)
        name = "video: SimCLR, S3D of a quarter's width, clips of 8 x 48^2"
    count, height = 4 * config.batch_size, stored_side(config.size)
    shape = (count * config.clip_frames, 3, height, height * 4 // 3)
    videos = Videos(
        tuple(Video(f"v_Noise_g01_c{place:02d}", 0, 1, True) for place in range(count)),
        ("Noise",),
        torch.randint(0, 256, shape, dtype=torch.uint8),
        torch.arange(count) * config.clip_frames,
        torch.full((count,), config.clip_frames),
    )
    return timed(name, config.precision, lambda run: pretrain(config, videos, run), config)


STEPS: dict[str, Callable[[], Step]] = {
    "vision": vision,
    "text": text,
    "rl": rl,
    "graph": graph,
    "video": video,
}


@functools.cache
def peak(precision: str) -> float:
    """Floating-point operations a second of a product of two large matrices."""
    first = torch.randn(SIDE, SIDE, device=DEVICE).to(DTYPES[precision])
    best = 0.0
    for _ in range(10):
        start = now()
        _ = first @ first
        best = max(best, 2 * SIDE**3 / (now() - start))
    return best


def main() -> None:
    """Time the steps that are asked for, and print a table of them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("domains", nargs="*", metavar="NAME", help=f"of {', '.join(STEPS)}")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args()
    if unknown := set(options.domains) - set(STEPS):
        parser.error(f"no domain {unknown.pop()!r}; there are: {', '.join(STEPS)}")
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    where = torch.cuda.get_device_name() if ON_GPU else f"CPU, {options.threads} threads"
    print(f"One training step; {where}, torch {torch.__version__}\n")
    print("| step | precision | s | TFLOP | operators | TFLOP/s | of the peak |")
    print("|---|---|---|---|---|---|---|")
    with without_tf32():  # as in a run
        for domain in options.domains or STEPS:
            step = STEPS[domain]()
            rate = step.operations / step.seconds
            print(
                f"| {step.name} | {step.precision} | {step.seconds:.4g} "
                f"| {step.operations / 1e12:.3g} | {step.operators} | {rate / 1e12:.3g} "
                f"| {rate / peak(step.precision):.0%} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
