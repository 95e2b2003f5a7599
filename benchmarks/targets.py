"""One of the suite's targets on a GPU: the figure, its share of the peak, and what limits it.

Run it as ``python benchmarks/targets.py TARGET``; the targets are ``shared.command.targets``. What
is timed are the domains' own training loops, at the paper's sizes, on made-up data of the real
shape (DD itself where it lies below SUITE_DATA), after a few steps that warm up, without waiting
for the device in between; rl is timed by the functions of ``benchmarks/rl.py``. Evaluations are in
no figure but that of cartpole.

Arithmetic is counted by torch's counter in one step; it sees products and convolutions. Where a
target is missed, a few more steps go through the profiler, and the operators with the most time of
their own are named. With ``--out FILE`` the figures are written there as JSON. ``--device cpu``
makes everything small, to try the script itself where torch sees no GPU, and judges nothing.
"""

import argparse
import dataclasses
import importlib.util
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile
from torch.utils.flop_counter import FlopCounterMode

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from shared.command.targets import TARGETS, Precision, Target, peak_of
from shared.experiment.runs import Run
from shared.experiment.tables import Config as AnyConfig

FOLDER = Path(__file__).resolve().parent
ON_GPU = torch.cuda.is_available() and "cpu" not in sys.argv
WARM, TIMED, PROFILED = (10, 40, 5) if ON_GPU else (1, 2, 1)  # steps
TOP = 8  # operators that are named


@dataclass(frozen=True)
class Loop:
    """What a training loop took.

    Args:
        seconds: of a step.
        flops: of a step, as torch counts them; 0 where it was not asked to.
        top: operators and their shares of the time, where it was asked for them.
    """

    seconds: float
    flops: float = 0.0
    top: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True)
class Figure:
    """A measured target.

    Args:
        value: in the target's unit.
        loop: what its share of the peak is computed of.
        precision: of the products.
        notes: what else was measured, or has to be known.
    """

    value: float
    loop: Loop
    precision: Precision | None
    notes: dict[str, Any]


class _Enough(Exception):
    """What was to be timed is done."""


class Timed(Run):
    """A run that leaves its loop once it is timed, and writes nothing of it."""

    def __init__(
        self, folder: Path, config: AnyConfig, missed: Callable[[float], bool], steps: int
    ) -> None:
        super().__init__(folder, config)
        self.loop = Loop(0.0)
        self._missed, self._timed = missed, steps

    def track(self, **objects: Any) -> int:
        """There is nothing to resume."""
        return 0

    def record_data(self, **fingerprints: str) -> None:
        """There is no environment to note them in."""

    def steps(self, total: int, what: str, **options: Any) -> Iterator[int]:
        """Steps that warm up, are timed, counted, and where the target is missed profiled."""
        step = iter(range(total))

        def some(count: int) -> Iterator[int]:
            for _ in range(count):
                yield next(step)

        yield from some(WARM)
        start = now()
        yield from some(self._timed)
        seconds = (now() - start) / self._timed
        with FlopCounterMode(display=False) as counter:
            yield from some(1)
        top: tuple[tuple[str, float], ...] = ()
        if self._missed(seconds):
            kinds = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if ON_GPU else [])]
            with profile(activities=kinds) as profiler:
                yield from some(PROFILED)
                now()
            top = shares(profiler)
        self.loop = Loop(seconds, float(counter.get_total_flops()), top)
        raise _Enough


def now() -> float:
    """Seconds, once the device has done all that it was given."""
    if ON_GPU:
        torch.cuda.synchronize()
    return time.perf_counter()


def shares(profiler: profile) -> tuple[tuple[str, float], ...]:
    """The operators with the most time of their own on the device, and their shares of it."""
    of = "self_device_time_total" if ON_GPU else "self_cpu_time_total"
    taken = {event.key: float(getattr(event, of)) for event in profiler.key_averages()}
    total = sum(taken.values()) or 1.0
    most = sorted(taken.items(), key=lambda item: -item[1])[:TOP]
    return tuple((name[:80], value / total) for name, value in most if value)


def timed(
    train: Callable[[Any, Run], object],
    config: Any,
    missed: Callable[[float], bool],
    steps: int = TIMED,
) -> Loop:
    """What the loop of a training takes.

    Args:
        train: calls ``run.steps`` once.
        config: of the run.
        missed: whether so many seconds a step miss the target, and the profiler is to say why.
        steps: that are timed.
    """
    with tempfile.TemporaryDirectory() as folder:
        run = Timed(Path(folder), config, missed, steps)
        try:
            train(config, run)
        except _Enough:
            return run.loop
    raise RuntimeError(f"the loop ended before {WARM + steps + 1 + PROFILED} steps")


def simclr(target: Target) -> Figure:
    """SimCLR on images of CIFAR-10's size, as configured and with the encoder compiled."""
    from vision.config import Config
    from vision.data import Images
    from vision.train import pretrain

    batch, epochs = (256, 200) if ON_GPU else (16, 200)
    config = Config(batch_size=batch, epochs=epochs, warmup_epochs=0.0)
    if not ON_GPU:
        config = dataclasses.replace(config, backbone="resnet8", stem="strided", head_hidden=64)
    count = 4 * batch
    pixels = torch.randint(0, 256, (count, 3, 32, 32), dtype=torch.uint8)
    images = Images(pixels, torch.zeros(count, dtype=torch.int64))
    mean = (0.5, 0.5, 0.5)

    def train(config: Any, run: Run) -> None:
        pretrain(config, images, run, mean=mean, std=mean)

    def minutes(seconds: float) -> float:
        return epochs * (50_000 // 256) * seconds / 60

    def missed(seconds: float) -> bool:
        return not target.met(minutes(seconds))

    loop = timed(train, config, missed)
    notes: dict[str, Any] = {"seconds of a step": loop.seconds}
    if ON_GPU:
        compiled = timed(train, dataclasses.replace(config, compile=True), lambda _: False)
        notes["minutes with the encoder compiled"] = minutes(compiled.seconds)
    return Figure(minutes(loop.seconds), loop, "bfloat16", notes)


def closed_form(target: Target) -> Figure:
    """The loss of MMCL with its gradient, beside a step of SimCLR's."""
    from shared import Objective, max_margin, term

    step = simclr(dataclasses.replace(target, bound=float("inf")))
    objective = Objective(term(max_margin, gamma=0.5, cost=100.0, ridge=0.1))
    views = torch.randn(2, 256 if ON_GPU else 16, 128, device="cuda" if ON_GPU else "cpu")
    one_loss(objective, views)
    before = now()
    one_loss(objective, views)
    seconds = now() - before
    value = 100 * seconds / step.loop.seconds
    top: tuple[tuple[str, float], ...] = ()
    if not target.met(value):
        kinds = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if ON_GPU else [])]
        with profile(activities=kinds) as profiler:
            one_loss(objective, views)
            now()
        top = shares(profiler)
    notes = {"seconds of the loss": seconds, "seconds of a step": step.loop.seconds}
    return Figure(value, Loop(seconds, 0.0, top), None, notes)


def one_loss(objective: Any, views: Tensor) -> None:
    """The loss and its gradient for two views (B, D)."""
    from shared import two_views

    leaf = views.clone().requires_grad_()
    objective.build(views.shape[-1]).to(views.device)(two_views(*leaf), step=1)[0].backward()


def agent_of(rl: ModuleType, folder: Path) -> tuple[Any, Any, Any]:
    """The paper's configuration of CURL, an agent, and a full replay of noise."""
    from rl.agent import Agent
    from rl.config import Config

    config = Config(batch_size=512)
    if not ON_GPU:
        config = dataclasses.replace(config, batch_size=8, filters=4, hidden=32)
    replay, _ = rl.fill(folder, config, 2000 if ON_GPU else 40)
    return config, Agent(config, 1, rl.DEVICE), replay


def updates(target: Target) -> Figure:
    """Updates of CURL at batch 512, as captured graphs where there is a GPU, and launched."""
    rl, count = benchmark("rl"), 200 if ON_GPU else 2
    rl.set_tf32(True)
    with tempfile.TemporaryDirectory() as folder:
        config, agent, replay = agent_of(rl, Path(folder) / "replay")
        seconds = rl.seconds_of_updates(agent, replay, config, ON_GPU, count) / count
        launched = rl.seconds_of_updates(agent, replay, config, False, count) / count

        def update(step: int) -> None:
            agent.update(
                replay.batch(replay.draw(config.batch_size, config.crop), config.crop), step
            )

        # The mean of two steps: every second one trains the actor.
        with FlopCounterMode(display=False) as counter:
            update(1)
            update(2)
        top: tuple[tuple[str, float], ...] = ()
        if not target.met(1 / seconds):
            kinds = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if ON_GPU else [])]
            with profile(activities=kinds) as profiler:
                update(1)
                update(2)
                now()
            top = shares(profiler)
        replay.delete()
    loop = Loop(seconds, counter.get_total_flops() / 2, top)
    notes = {"updates/s launched one by one": 1 / launched}
    return Figure(1 / seconds, loop, "tf32", notes)


def cartpole(target: Target) -> Figure:
    """A run of 100K environment steps, by the training loop, the environment, and evaluations."""
    from rl.config import Config

    rl, count = benchmark("rl"), 200 if ON_GPU else 2
    rl.set_tf32(True)
    config = Config(task="cartpole_swingup", action_repeat=8)
    if not ON_GPU:
        config = dataclasses.replace(config, batch_size=8, filters=4, hidden=32)
    decision = rl.decision_seconds(config.task, config.action_repeat, config.quality)
    rate = rl.loop_rate(config, count, torch.get_num_threads())
    decisions = config.environment_steps // config.action_repeat
    evaluations = config.environment_steps // config.evaluate_every
    # The episodes of an evaluation go on side by side where there are cores for them.
    watched = evaluations * config.episode_steps // config.action_repeat
    seconds = (decisions - config.initial_steps) / rate
    seconds += (config.initial_steps + watched) * decision
    notes = {"decisions/s of the loop": rate, "seconds of a decision without update": decision}
    return Figure(seconds / 60, Loop(1 / rate), None, notes)


def s3d(target: Target) -> Figure:
    """SimCLR with S3D on clips of noise, 16 x 112 x 112, 819 videos an epoch."""
    from video.config import Config
    from video.train import pretrain

    video = benchmark("video")
    config = dataclasses.replace(Config(), method="simclr", **video.GPU)
    if not ON_GPU:
        small: dict[str, Any] = {"clip_frames": 8, "size": 32, "width": 0.125, "batch_size": 8}
        config = dataclasses.replace(config, **small)
    videos = noise_videos(config, 4 * config.batch_size)
    per_epoch = video.TRAINING // 128

    def minutes(seconds: float) -> float:
        return float(video.EPOCHS * per_epoch * seconds / 60)

    loop = timed(
        lambda config, run: pretrain(config, videos, run),
        config,
        lambda seconds: not target.met(minutes(seconds)),
    )
    return Figure(minutes(loop.seconds), loop, "bfloat16", {"seconds of a step": loop.seconds})


def noise_videos(config: Any, count: int) -> Any:
    """Videos of noise, each as long as a clip, in frames of 4 : 3 as they are kept."""
    from video.data import Video, Videos, stored_side

    height = stored_side(config.size)
    shape = (count * config.clip_frames, 3, height, height * 4 // 3)
    return Videos(
        tuple(Video(f"v_Noise_g01_c{place:02d}", 0, 1, True) for place in range(count)),
        ("Noise",),
        torch.randint(0, 256, shape, dtype=torch.uint8),
        torch.arange(count) * config.clip_frames,
        torch.full((count,), config.clip_frames),
    )


def random_words(sentences: int, vocabulary: int) -> Any:
    """Sentences of random words, as long as those of books: 17 on average."""
    import numpy as np

    from text.tokens import Tokens

    generator = np.random.default_rng(0)
    offsets = np.concatenate([[0], generator.geometric(1 / 17, sentences).cumsum()])
    ids = generator.integers(2, vocabulary, offsets[-1]).astype(np.int32)
    return Tokens(ids, offsets.astype(np.int64), np.zeros(sentences, dtype=np.int32))


def gru(target: Target) -> Figure:
    """quick-thoughts' GRU on made-up sentences, 400 a step."""
    from text.config import Config
    from text.encoder import QuickThought
    from text.train import pretrain, shape_of

    config = Config()
    if not ON_GPU:
        config = dataclasses.replace(config, batch_size=20, hidden=32, embedding=16)
    tokens = random_words(4 * config.batch_size, config.vocabulary)
    config = dataclasses.replace(config, epochs=100, steps=None)
    loop = timed(
        lambda config, run: pretrain(config, tokens, run, words=config.vocabulary),
        config,
        lambda seconds: not target.met(1 / seconds),
    )
    # The counter knows no recurrent layer of cuDNN; on the CPU it sees the products inside.
    few = 8
    batch = tokens.batch(0, few, config.length)
    model = QuickThought(shape_of(config, config.vocabulary))
    with FlopCounterMode(display=False) as counter:
        f, g = model(batch.ids, batch.mask)
        (f.sum() + g.sum()).backward()
    flops = counter.get_total_flops() * config.batch_size / few
    notes = {"arithmetic": f"counted on the CPU for {few} sentences and scaled"}
    loop = dataclasses.replace(loop, flops=flops)
    return Figure(1 / loop.seconds, loop, "bfloat16", notes)


def dd(target: Target) -> Figure:
    """Epochs of GraphCL on DD, or on made-up graphs of its number and size."""
    from graph import train
    from graph.config import Config
    from graph.data import load
    from shared.experiment.data import MissingData, data_root

    config = dataclasses.replace(Config(), dataset="DD", epochs=1000)
    notes: dict[str, Any] = {}
    try:
        graphs = load("DD", data_root(None))
    except MissingData:
        graphs = graphs_like_dd(1178 if ON_GPU else 150)
        notes["made up"] = "graphs of DD's number, mean size and labels; DD itself is not there"
    with (
        mock.patch.object(train, "load", return_value=graphs),
        mock.patch.object(train, "fingerprint", return_value=""),
    ):
        loop = timed(
            train.measure, config, lambda seconds: not target.met(seconds), 10 if ON_GPU else 1
        )
    notes["precision"] = f"{config.precision}, for which no peak is listed"
    return Figure(loop.seconds, loop, None, notes)


def graphs_like_dd(count: int) -> Any:
    """Random graphs with 284 nodes, 716 edges and one of 89 labels a node, in the mean DD's."""
    from graph.data import Graphs

    nodes, edges, labels = 284, 716, 89
    ends = torch.randint(nodes, (2, count, edges))
    ends = (ends + nodes * torch.arange(count)[:, None]).flatten(1)
    x = torch.eye(labels)[torch.randint(labels, (count * nodes,))]
    batch = torch.arange(count).repeat_interleave(nodes)
    both = torch.cat([ends, ends.flip(0)], dim=1)
    return Graphs(x, both, batch, torch.arange(count) % 2)


def benchmark(name: str) -> ModuleType:
    """The program of this folder that is called like a domain."""
    spec = importlib.util.spec_from_file_location(f"benchmark_{name}", FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


MEASURES: dict[str, Callable[[Target], Figure]] = {
    "simclr": simclr,
    "closed-form": closed_form,
    "updates": updates,
    "cartpole": cartpole,
    "s3d": s3d,
    "gru": gru,
    "dd": dd,
}


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("target", choices=[target.name for target in TARGETS])
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if options.device == "cuda" and not ON_GPU:
        parser.error("no CUDA device here; --device cpu tries the script, smaller")
    (target,) = (target for target in TARGETS if target.name == options.target)
    device = torch.cuda.get_device_name() if ON_GPU else "cpu"
    torch.manual_seed(0)
    figure = MEASURES[target.name](target)
    found: dict[str, Any] = {
        "value": figure.value,
        "unit": target.unit,
        "device": device,
        "reduced": not ON_GPU,
        "notes": figure.notes,
        "top": figure.loop.top,
    }
    if figure.loop.flops:
        found["tflops"] = figure.loop.flops / figure.loop.seconds / 1e12
        peak = peak_of(device, figure.precision) if figure.precision else None
        if peak is not None:
            found |= {"peak": peak[0], "peak_source": peak[1], "share": found["tflops"] / peak[0]}
    bound = f"{'at least' if target.at_least else 'at most'} {target.bound:g}"
    print(f"{target.what}: {figure.value:.4g} {target.unit} (to reach: {bound}), {device}")
    for name in ("tflops", "share"):
        if name in found:
            print(f"  {name}: {found[name]:.3g}")
    for name, note in figure.notes.items():
        print(f"  {name}: {note if isinstance(note, str) else f'{note:.4g}'}")
    for name, share in figure.loop.top:
        print(f"  {share:6.1%}  {name}")
    if not ON_GPU:
        print("  made smaller for a CPU: this says nothing of the target")
    if options.out:
        options.out.write_text(json.dumps(found))


if __name__ == "__main__":
    main()
