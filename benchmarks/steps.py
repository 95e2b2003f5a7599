"""One training step of each domain: its time, its arithmetic, and the share of the machine's peak.

Run it as ``./reproduce.sh benchmark``, or as ``python benchmarks/steps.py [NAME ...]``. What is
timed are the domains' own training loops on random data of the real shape, after a few steps to
warm up, without waiting for the device in between. On a GPU the networks are those of the papers;
on a CPU small ones, which say so in their names.

Printed for each step: seconds (mean over the timed steps), floating-point operations (torch's
counter, which sees products and convolutions), how often the host waits for the device, the host's
own work, and the share of the peak. Waits and host work are those of a GPU. What a run captures in
a CUDA graph is timed so, and its operations are counted as if it were not. The peak is what a
product of two large matrices reaches on this machine, in the precision of the step and with as many
threads. A GRU on a GPU is one operator that the counter does not know; its arithmetic is counted on
the CPU for a few sentences and scaled.
"""

import argparse
import contextlib
import dataclasses
import functools
import itertools
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch.utils.flop_counter import FlopCounterMode

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from shared.capture import Captured
from shared.experiment.run import Run
from shared.precision import without_tf32

ON_GPU = torch.cuda.is_available()
# Nodes, undirected edges and node labels of a graph of a TU set, on average.
SIZES = {"MUTAG": (18, 20, 7), "DD": (284, 716, 89)}
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
        host: seconds until all of it is launched; None on a CPU.
        operations: floating-point operations, as torch counts them.
        waits: how often the host waits for the device; None on a CPU.
    """

    name: str
    precision: str
    seconds: float
    host: float | None
    operations: float
    waits: int | None


def product_operations(first: Any, second: Any, *, out_val: Any = None, **_: Any) -> int:
    """Floating-point operations of a matrix product, of a sparse one those of its entries alone."""
    entries = first._nnz() if first.layout != torch.strided else first.numel()
    return 2 * int(entries) * int(second.shape[1])


product_operations._get_raw = True  # type: ignore[attr-defined]  # tensors, not their shapes


def counter() -> FlopCounterMode:
    """Counts the floating-point operations inside."""
    return FlopCounterMode(display=False, custom_mapping={torch.ops.aten.mm: product_operations})


@contextlib.contextmanager
def waits() -> Iterator[Callable[[], int | None]]:
    """Gives what says how often the host has waited for the GPU inside."""
    if not ON_GPU:
        yield lambda: None
        return
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            yield lambda: sum("synchroniz" in str(warning.message) for warning in caught)
        finally:
            torch.cuda.set_sync_debug_mode("default")


@contextlib.contextmanager
def as_it_is() -> Iterator[None]:
    """Inside, nothing is launched as a graph: each operator can be seen."""
    with mock.patch.object(
        Captured, "__call__", lambda graph, *arguments: graph.function(*arguments)
    ):
        yield


class Finished(Exception):
    """The loop was timed."""


class TimedRun(Run):
    """A run that times the steps of its loop, then leaves it.

    Attributes:
        measured: seconds of a step, those of the host, its operations and waits, once timed.
    """

    measured: tuple[float, float | None, float, int | None]

    def track(self, **objects: Any) -> int:
        """There is nothing to resume."""
        return 0

    def steps(self, total: int, what: str, **options: Any) -> Iterator[int]:
        """A few steps to warm up, those that are timed, one that is counted; ``total`` or more."""
        step = itertools.count()
        for _ in range(WARM):
            yield next(step)
        start = now()
        for _ in range(TIMED):
            yield next(step)
        host = (time.perf_counter() - start) / TIMED if ON_GPU else None
        seconds = (now() - start) / TIMED
        with as_it_is(), waits() as waited, counter() as counted:
            yield next(step)
        self.measured = seconds, host, counted.get_total_flops(), waited()
        raise Finished


def now() -> float:
    """Seconds, once the device has done all that it was given."""
    if ON_GPU:
        torch.cuda.synchronize()
    return time.perf_counter()


Loop = Callable[[Run], object]  # calls ``run.steps`` once


def timed(name: str, config: Any, loop: Loop) -> Step:
    """The step of a training loop.

    Args:
        name: of the step.
        config: of the run.
        loop: of the configuration.
    """
    with tempfile.TemporaryDirectory() as folder, TimedRun(Path(folder), config) as run:
        try:
            loop(run)
        except Finished:
            return Step(name, config.precision, *run.measured)
    raise RuntimeError(f"{name}: the loop ended before {WARM + TIMED + 1} steps")


def vision() -> Step:
    """SimCLR on images of CIFAR-10's size."""
    from vision.config import Config

    config, name = Config(batch_size=256, warmup_epochs=0.0), "vision: SimCLR, ResNet-18, B = 256"
    if not ON_GPU:
        config = dataclasses.replace(config, backbone="resnet8", stem="strided", batch_size=64)
        name = "vision: SimCLR, ResNet-8, B = 64"
    return timed(name, config, vision_loop(config))


def vision_loop(config: Any) -> Loop:
    """Training on images of noise, an epoch of more steps than are seen."""
    from vision.images import Images
    from vision.train import pretrain

    # At the first step of an epoch the loss is looked at, which the others are not.
    count, side = (WARM + TIMED + 2) * config.batch_size, config.image_size
    pixels = torch.randint(0, 256, (count, 3, side, side), dtype=torch.uint8)
    images = Images(pixels, torch.zeros(count, dtype=torch.int64))
    colours = {"mean": (0.5, 0.5, 0.5), "std": (0.5, 0.5, 0.5)}
    return lambda run: pretrain(config, images, run, **colours)


def text() -> Step:
    """quick-thoughts' GRU on sentences of random words."""
    from text.config import Config
    from text.encoder import QuickThought
    from text.train import shape_of

    config, name = Config(epochs=100), "text: quick-thoughts, GRU 2400, B = 400"
    if not ON_GPU:
        config = dataclasses.replace(config, batch_size=100, hidden=128, embedding=128)
        name = "text: quick-thoughts, GRU 128, B = 100"
    step = timed(name, config, text_loop(config))
    if ON_GPU:
        few = 8
        batch = text_tokens(config).batch(0, few, config.length)
        with counter() as counted:
            f, g = QuickThought(shape_of(config, config.vocabulary))(batch.ids, batch.mask)
            (f.sum() + g.sum()).backward()
        more = counted.get_total_flops() * config.batch_size / few
        step = dataclasses.replace(step, operations=step.operations + more)
    return step


def text_tokens(config: Any) -> Any:
    """Sentences of random words, 16 of them on average."""
    from text.tokens import Tokens

    generator = np.random.default_rng(0)
    lengths = generator.geometric(1 / 16, 4 * config.batch_size)
    offsets = np.concatenate([[0], lengths.cumsum()]).astype(np.int64)
    ids = generator.integers(2, config.vocabulary, offsets[-1]).astype(np.int32)
    return Tokens(ids, offsets, np.zeros(len(lengths), dtype=np.int32))


def text_loop(config: Any) -> Loop:
    """Training on sentences of random words."""
    from text.train import pretrain

    tokens = text_tokens(config)
    return lambda run: pretrain(config, tokens, run, words=config.vocabulary)


def rl() -> Step:
    """CURL's update of the whole agent; on a GPU as captured graphs."""
    from rl.config import Config
    from rl.train import make_update

    config, name = Config(batch_size=512), "rl: CURL's update, B = 512"
    if not ON_GPU:
        config = dataclasses.replace(config, batch_size=32)
        name = "rl: CURL's update, B = 32"
    with tempfile.TemporaryDirectory() as folder:
        agent, replay = rl_agent(config, Path(folder))
        update = make_update(agent, replay, config)

        def updates(first: int, last: int) -> None:
            for step in range(first, last):
                update(replay.draw(config.batch_size, config.crop), step)

        updates(1, 1 + 2 * WARM)
        start = now()
        updates(1 + 2 * WARM, 1 + 2 * WARM + 2 * TIMED)
        host = (time.perf_counter() - start) / (2 * TIMED) if ON_GPU else None
        seconds = (now() - start) / (2 * TIMED)
        # The mean of two, as if they were not captured: every second one trains the actor, too.
        with waits() as waited, counter() as counted:
            for step in (1, 2):
                draw = replay.draw(config.batch_size, config.crop)
                agent.update(replay.batch(draw, config.crop), step)
        count = waited()
        replay.delete()
    operations = counted.get_total_flops() / 2
    return Step(name, "float32", seconds, host, operations, None if count is None else count // 2)


def rl_agent(config: Any, folder: Path) -> tuple[Any, Any]:
    """An agent, and a replay of frames of noise for ten batches."""
    from rl.agent import Agent
    from rl.replay import Replay

    generator = np.random.default_rng(0)
    count, shape = 10 * config.batch_size, (3, config.frame_size, config.frame_size)
    replay = Replay(
        folder / "replay",
        count,
        frame_size=config.frame_size,
        stack=config.stack,
        action_dimensions=1,
        device=torch.device(DEVICE),
    )
    for number in range(count):
        if number % (config.episode_steps // config.action_repeat) == 0:
            replay.begin(generator.integers(256, size=shape, dtype=np.uint8))
        frame = generator.integers(256, size=shape, dtype=np.uint8)
        replay.add(generator.uniform(-1, 1, 1).astype(np.float32), 1.0, frame)
    return Agent(config, 1, torch.device(DEVICE)), replay


def graph() -> Step:
    """GraphCL on random graphs of DD's number, mean size and labels."""
    from graph.config import Config

    config = dataclasses.replace(Config(), dataset="DD", epochs=1000)
    count = 1178 if ON_GPU else 512
    name = f"graph: GraphCL, an epoch of {count} graphs like DD's"
    return timed(name, config, graph_loop(config, count))


def loop_of(domain: str, config: Any) -> Loop:
    """A training loop of a few steps."""
    if domain == "graph":
        return graph_loop(config, config.batch_size)
    return {"vision": vision_loop, "text": text_loop, "video": video_loop}[domain](config)


def graphs_like(name: str, count: int) -> Any:
    """``count`` random graphs of a data set's mean size and labels."""
    from graph.data import Graphs

    nodes, edges, labels = SIZES[name]
    ends = torch.randint(nodes, (2, count, edges))
    ends = (ends + nodes * torch.arange(count)[:, None]).flatten(1)
    x = torch.eye(labels)[torch.randint(labels, (count * nodes,))]
    batch = torch.arange(count).repeat_interleave(nodes)
    return Graphs(x, torch.cat([ends, ends.flip(0)], dim=1), batch, torch.arange(count) % 2)


def graph_loop(config: Any, count: int) -> Loop:
    """Training on ``count`` random graphs; a step is an epoch."""
    from graph import train

    graphs = graphs_like(config.dataset, count)

    def loop(run: Run) -> object:
        with (
            mock.patch.object(train, "load", return_value=graphs),
            mock.patch.object(train, "fingerprint", return_value=""),
        ):
            return train.measure(config, run)

    return loop


def video() -> Step:
    """SimCLR with S3D on clips of noise."""
    from video.config import Config

    config = Config(method="simclr", epochs=100)
    name = f"video: SimCLR, S3D, clips of {config.clip_frames} x {config.size}^2"
    if not ON_GPU:
        small: dict[str, Any] = {"clip_frames": 8, "size": 48, "width": 0.25, "batch_size": 16}
        config = dataclasses.replace(config, **small)
        name = "video: SimCLR, S3D of a quarter's width, clips of 8 x 48^2"
    return timed(name, config, video_loop(config))


def video_loop(config: Any) -> Loop:
    """Training on clips of noise."""
    from video.train import pretrain

    videos = clips_of_noise(config, 4 * config.batch_size)
    return lambda run: pretrain(config, videos, run)


def clips_of_noise(config: Any, count: int) -> Any:
    """``count`` videos, each as long as a clip."""
    from video.data import Video, Videos, stored_side

    height = stored_side(config.size)
    shape = (count * config.clip_frames, 3, height, height * 4 // 3)
    return Videos(
        tuple(Video(f"v_Noise_g01_c{number:02d}", 0, 1, True) for number in range(count)),
        ("Noise",),
        torch.randint(0, 256, shape, dtype=torch.uint8),
        torch.arange(count) * config.clip_frames,
        torch.full((count,), config.clip_frames),
    )


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
    columns = "step|precision|s|TFLOP|waits|host, ms|TFLOP/s|of the peak".split("|")
    print(f"| {' | '.join(columns)} |\n{'|---' * len(columns)}|")
    with without_tf32():  # as in a run
        for domain in options.domains or STEPS:
            step = STEPS[domain]()
            rate = step.operations / step.seconds
            cells = (
                step.name,
                step.precision,
                f"{step.seconds:.4g}",
                f"{step.operations / 1e12:.3g}",
                "" if step.waits is None else step.waits,
                "" if step.host is None else f"{step.host * 1e3:.3g}",
                f"{rate / 1e12:.3g}",
                f"{rate / peak(step.precision):.0%}",
            )
            print(f"| {' | '.join(map(str, cells))} |", flush=True)


if __name__ == "__main__":
    main()
