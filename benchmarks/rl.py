"""Time of an update of the agent by its parts, of frames and physics, and of the contrastive step.

Run it as ``python benchmarks/rl.py``; it needs no data. On a machine with a GPU it measures there,
otherwise on the CPU (``--threads``, ``--batch`` and ``--updates`` to taste), and says at its end
what it could not measure.

Networks, crops and frames are those of the paper tier. The replay holds ``--transitions`` of random
bytes in frames of the real size, in episodes of the real length. It prints:

* milliseconds of a frame at both qualities, and of a step of the physics;
* bytes of the replay for 100K environment steps of the task with the smallest action repeat, beside
  a program in the manner of CURL's, which stores the stacks before and after each action;
* for each batch size, updates a second and the parts of an update; on a GPU each part is waited
  for, so that an update takes longer than in the loop;
* sampling and cropping beside that program's: stacks copied out of numpy arrays, a window of its
  own for each through ``sliding_window_view``, then brought to the device and made float. Both are
  given the same transitions and windows, and have to come to the same crops;
* the contrastive step with the objectives of the tables beside CURL's, in turns, the shortest of a
  few, and of each what lies between the latents and their gradients;
* how long 100K environment steps take, of the task that was measured;
* on a GPU, the update as it is written and as captured graphs, in float32, TF32 and bfloat16, and
  the training loop itself, environment included;
* with ``--processes N``, the training loop in N processes side by side.
"""

import argparse
import dataclasses
import multiprocessing
import statistics
import sys
import tempfile
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from rl import train
from rl.agent import Agent, Contrast
from rl.config import TASKS, Config
from rl.environment import ACTION_REPEATS, QUALITIES, DeepMindControl, renderer_in_use
from rl.replay import Batch, Draw, Replay
from rl.tables import CLLR_ROWS, LMCL_ROWS
from rl.train import CapturedUpdate
from shared import query_key
from shared.experiment.runs import Run

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
# Rows of the tables, one for each family of objectives; the first is what the others stand beside.
FAMILIES = (
    "CURL",
    "CURL, cosine",
    "DCL",
    "HCL",
    "LMCL(CURL+DP)",
    "CLLR(CURL+l21-norm), norm over batch",
    "CLLR(CURL+nuclear-norm), norm over batch",
    "margins",
    "MMCL",
)
REPEAT = 20  # environment steps of the longer of two decisions whose difference is the physics
DECISIONS = 40  # timed of each
ROUNDS = 5  # of sampling
WARM_UP = CapturedUpdate.WARM_UP + 4  # updates on a GPU: uncaptured, captured, and one of each
BEGINNING = 20  # random decisions of the training loop that is timed


class Stopwatch:
    """Seconds by name; waits for the device at both ends of what it times."""

    def __init__(self) -> None:
        self.seconds: defaultdict[str, list[float]] = defaultdict(list)

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        """Time the block under ``name``."""
        wait()
        start = time.perf_counter()
        yield
        wait()
        self.seconds[name].append(time.perf_counter() - start)

    def watched(self, name: str, work: Callable[..., Any]) -> Callable[..., Any]:
        """A function that does the same and is timed."""

        def timed(*arguments: Any) -> Any:
            with self(name):
                return work(*arguments)

        return timed

    def shortest(self, name: str) -> float:
        """The least that anything else on the machine has stretched, and no warm-up."""
        return min(self.seconds[name])


class StackedTwice:
    """A replay of stacks (T, 3K, S, S) before and after each action, in the manner of CURL's."""

    def __init__(self, transitions: int, channels: int, size: int) -> None:
        shape = (transitions, channels, size, size)
        self.before, self.after = np.empty(shape, np.uint8), np.empty(shape, np.uint8)

    def batch(self, draw: Draw, crop: int) -> tuple[Tensor, ...]:
        """Crops of observation, next observation and positive, (B, 3K, C, C) float32."""
        index, rows = draw.index.numpy(), np.arange(len(draw.index))
        before, after = self.before[index], self.after[index]
        crops = []
        pairs = zip((before, after, before.copy()), draw.offsets.mT.numpy(), strict=True)
        for stacks, (y, x) in pairs:
            windows = np.lib.stride_tricks.sliding_window_view(stacks, (crop, crop), axis=(2, 3))
            crops.append(torch.as_tensor(windows[rows, :, y, x], device=DEVICE).float())
        return tuple(crops)


def wait() -> None:
    """Until the device has done all that it was given."""
    if DEVICE == "cuda":
        torch.cuda.synchronize()


def fill(folder: Path, config: Config, transitions: int) -> tuple[Replay, StackedTwice]:
    """Both replays, of the same transitions."""
    size, stack = config.frame_size, config.stack
    replay = new_replay(folder, config, transitions, torch.device(DEVICE))
    stacked = StackedTwice(transitions, 3 * stack, size)
    generator = np.random.default_rng(0)
    frames: deque[np.ndarray] = deque(maxlen=stack)

    def new_frame() -> np.ndarray:
        return generator.integers(256, size=(3, size, size), dtype=np.uint8)

    for place in range(transitions):
        if place % (config.episode_steps // config.action_repeat) == 0:
            frames.extend([new_frame()] * stack)
            replay.begin(frames[-1])
        frame = new_frame()
        stacked.before[place] = np.concatenate(frames)
        replay.add(generator.uniform(-1, 1, 1).astype(np.float32), 1.0, frame)
        frames.append(frame)
        stacked.after[place] = np.concatenate(frames)
    return replay, stacked


def new_replay(folder: Path, config: Config, transitions: int, device: torch.device) -> Replay:
    """An empty one; actions have one dimension, which decides nothing that is measured."""
    return Replay(
        folder,
        transitions,
        task=config.task,
        frame_size=config.frame_size,
        stack=config.stack,
        action_dimensions=1,
        device=device,
    )


def decision_seconds(task: str, repeat: int, quality: str) -> float:
    """Of ``repeat`` environment steps and a frame, median."""
    seconds = []
    length = (DECISIONS + 5) * repeat
    with closing(
        DeepMindControl(task, action_repeat=repeat, quality=quality, episode_steps=length)
    ) as environment:
        environment.reset(seed=0)
        environment.action_space.seed(0)
        for _ in range(DECISIONS + 5):
            action = environment.action_space.sample()
            start = time.perf_counter()
            environment.step(action)
            seconds.append(time.perf_counter() - start)
    return statistics.median(seconds[5:])


def report_environment(task: str) -> float:
    """Print the time of frames and physics; returns seconds of a decision at full quality."""
    repeat, frames = ACTION_REPEATS[task], {}
    for quality in QUALITIES:
        one, many = (decision_seconds(task, each, quality) for each in (1, REPEAT))
        physics = (many - one) / (REPEAT - 1)
        frames[quality] = one - physics
    print(f"{task}, drawn by {renderer_in_use()}")
    for quality, seconds in frames.items():
        print(f"  frame of 100 x 100, {quality:4s}             {1e3 * seconds:9.2f} ms")
    print(f"  physics, an environment step         {1e3 * physics:9.3f} ms")
    decision = frames["full"] + repeat * physics
    print(f"  decision of {repeat} steps, full quality   {1e3 * decision:11.2f} ms\n")
    return decision


def report_bytes(folder: Path) -> None:
    """Print what the replay takes of the task with the most decisions, and the other program's."""
    task = min(ACTION_REPEATS, key=lambda each: ACTION_REPEATS[each])
    config = Config(task=task, action_repeat=ACTION_REPEATS[task])
    decisions = config.environment_steps // config.action_repeat
    ours = new_replay(folder, config, decisions, torch.device("cpu")).bytes_of_frames
    theirs = decisions * 2 * 3 * config.stack * config.frame_size**2
    print(
        f"frames of {config.environment_steps:,} environment steps of {task}: {decisions:,} ",
        end="",
    )
    print("transitions; actions and rewards are less than 100 bytes each")
    print(f"  single frames, once                  {ours / 1e9:9.2f} GB   (target: under 4 GB)")
    print(f"  stacks, before and after             {theirs / 1e9:9.2f} GB")
    print(f"  ratio                                {ours / theirs:9.2f}\n")


def report_update(config: Config, replay: Replay, updates: int) -> float:
    """Print the parts of an update, means over as many with an actor's step as without."""
    torch.manual_seed(0)
    agent, watch = Agent(config, 1, DEVICE), Stopwatch()
    for owner, method, name in (
        (agent, "update_critics", "critic"),
        (agent, "update_actor", "actor"),
        (agent.contrast, "update", "contrastive"),
        (agent, "check_finite", "look for NaN"),
    ):
        setattr(owner, method, watch.watched(name, getattr(owner, method)))

    def update(step: int) -> None:
        with watch("sample and crop"):
            batch = replay.batch(replay.draw(config.batch_size, config.crop), config.crop)
        with watch("agent"):
            agent.update(batch, step)

    warm_up(update)
    watch.seconds.clear()
    for step in range(1, updates + 1):
        update(step)
    parts = {name: sum(every) / updates for name, every in watch.seconds.items()}
    whole = parts["sample and crop"] + parts.pop("agent")
    parts["follow"] = whole - sum(parts.values())
    order = ("sample and crop", "critic", "actor", "contrastive", "follow", "look for NaN")

    said = {
        "sample and crop": "three crops (target on a CPU: under 15%)",
        "actor": "with the temperature's, at every second update",
        "follow": "moving averages, and what is in no other part",
    }
    print(f"an update: {1e3 * whole:.1f} ms, {1 / whole:.2f} a second")
    for name in (each for each in order if each in parts):
        seconds = parts[name]
        text = f"  {name:16s} {1e3 * seconds:10.2f} ms  {seconds / whole:6.1%}"
        print(f"{text}   {said[name]}" if name in said else text)

    observation = torch.zeros(1, 3 * config.stack, *[config.frame_size] * 2, dtype=torch.uint8)
    for _ in range(ROUNDS):
        with watch("act"):
            agent.act(observation.to(DEVICE), sample=True).cpu()
    print(f"  beside it, choosing an action takes {1e3 * watch.shortest('act'):.2f} ms\n")
    return whole + watch.shortest("act")


def warm_up(update: Callable[[int], Any]) -> None:
    """Two updates, the fewest with and without the actor's step; on a GPU more."""
    for step in range(1, 1 + (WARM_UP if DEVICE == "cuda" else 2)):
        update(step)


def report_sampling(config: Config, replay: Replay, stacked: StackedTwice) -> None:
    """Print the time of a batch's crops beside the other program's."""
    watch, size, crop = Stopwatch(), config.batch_size, config.crop
    for _ in range(ROUNDS):
        draw = replay.draw(size, crop)
        with watch("bytes"):
            replay.batch(draw, crop)
        with watch("float"):
            ours = floats(replay.batch(draw, crop))
        with watch("theirs"):
            theirs = stacked.batch(draw, crop)
        assert all(map(torch.equal, ours, theirs)), "the two programs crop differently"
    seconds = {name: watch.shortest(name) for name in watch.seconds}
    print("three crops of a batch, ours beside stacks stored twice and windows of numpy's")
    for name, text in (
        ("theirs", "theirs, float32"),
        ("float", "ours, float32"),
        ("bytes", "ours, uint8, as the encoder takes it"),
    ):
        ratio = seconds[name] / seconds["theirs"]
        print(f"  {text:37s} {1e3 * seconds[name]:9.2f} ms   ratio {ratio:.2f}")
    print()


def floats(batch: Batch) -> tuple[Tensor, ...]:
    """The crops of a batch as float32."""
    return tuple(
        each.float() for each in (batch.observation, batch.next_observation, batch.positive)
    )


def report_objectives(config: Config, replay: Replay, rounds: int) -> None:
    """Print the contrastive step of each family beside CURL's."""
    rows = {row.label: row for row in (*LMCL_ROWS, *CLLR_ROWS)}
    watch, loss = Stopwatch(), Stopwatch()
    contrasts = {}
    for name in FAMILIES:
        torch.manual_seed(0)
        changed = dataclasses.replace(config, **rows[name].changes)
        contrasts[name] = Contrast(changed, DEVICE)
    batch = replay.batch(replay.draw(config.batch_size, config.crop), config.crop)
    latents = torch.randn(2, config.batch_size, config.latent, device=DEVICE)
    query, key = torch.nn.functional.layer_norm(latents, (config.latent,))
    # In turns: whatever else the machine does falls on all alike.
    for step in range(1, rounds + 1):
        for name, contrast in contrasts.items():
            with watch(name):
                contrast.update(batch.observation, batch.positive, step)
    for step in range(1, ROUNDS + 1):
        for name, contrast in contrasts.items():
            pairs = query_key(query.clone().requires_grad_(), key)
            with loss(name):
                contrast.criterion(pairs, step=step)[0].backward()
    base, alone = watch.shortest(FAMILIES[0]), loss.shortest(FAMILIES[0])
    print("a contrastive step, beside CURL's; and loss with penalties alone, there and back")
    for name in FAMILIES:
        step_seconds, loss_seconds = watch.shortest(name), loss.shortest(name)
        print(f"  {name:41s} {1e3 * step_seconds:9.1f} ms  {step_seconds / base:5.2f}", end="")
        print(f"   {1e3 * loss_seconds:8.2f} ms  {(loss_seconds - alone) / base:+7.1%} of a step")
    print()


def report_captured(config: Config, replay: Replay, updates: int) -> None:
    """Print updates a second as written and as captured graphs, for each precision."""
    print("updates a second, launched one by one and as captured graphs")
    full = dataclasses.replace(config, precision="float32")
    half = dataclasses.replace(config, precision="bfloat16")
    for name, changed in (("float32", full), ("TF32", full), ("bfloat16", half)):
        set_tf32(name != "float32")
        rates = []
        for captured in (False, True):
            torch.manual_seed(0)
            agent = Agent(changed, 1, DEVICE)
            rates.append(updates / seconds_of_updates(agent, replay, changed, captured, updates))
        print(f"  {name:9s} {rates[0]:9.1f} {rates[1]:9.1f}   ratio {rates[1] / rates[0]:.2f}")
    print("  (target: at least 100 a second with batch 512)\n")
    set_tf32(True)


def seconds_of_updates(
    agent: Agent, replay: Replay, config: Config, captured: bool, updates: int
) -> float:
    """Of so many updates, of which the device is waited for at the end alone."""
    graphs = CapturedUpdate(agent, replay, config)

    def update(step: int) -> None:
        draw = replay.draw(config.batch_size, config.crop)
        if captured:
            graphs(draw, step)
        else:
            agent.update(replay.batch(draw, config.crop), step)

    warm_up(update)
    wait()
    start = time.perf_counter()
    for step in range(1, updates + 1):
        update(step)
    wait()
    return time.perf_counter() - start


def set_tf32(on: bool) -> None:
    """Whether float32 products may be TF32's, as in training, or are exact."""
    torch.set_float32_matmul_precision("high" if on else "highest")
    torch.backends.cudnn.allow_tf32 = on


def loop_rate(config: Config, updates: int, threads: int, barrier: Any = None) -> float:
    """Decisions a second of the training loop, each with an update.

    Args:
        config: of the agent.
        updates: timed.
        threads: of torch on the CPU.
        barrier: at which processes wait for each other before they are timed.
    """
    torch.set_num_threads(threads)
    begin = BEGINNING + (WARM_UP if DEVICE == "cuda" else 2)
    # The last decision ends with the evaluation, and is not timed.
    steps = (begin + updates + 1) * config.action_repeat
    config = dataclasses.replace(
        config,
        environment_steps=steps,
        initial_steps=BEGINNING,
        evaluate_every=steps,
        evaluation_episodes=1,
    )
    moments = {}

    def note(done: int, total: int, what: str) -> None:
        decisions = done // config.action_repeat
        if decisions == begin and barrier is not None:
            barrier.wait()
        moments[decisions] = time.perf_counter()

    with tempfile.TemporaryDirectory() as folder, Run(Path(folder), config, progress=note) as run:
        train.measure(config, run)
    return updates / (moments[begin + updates] - moments[begin])


def report_processes(config: Config, updates: int, threads: int, count: int) -> None:
    """Print decisions a second of the training loop in processes side by side."""
    # Spawned: neither a renderer nor CUDA survives a fork.
    context = multiprocessing.get_context("spawn")
    seeded = [dataclasses.replace(config, seed=seed) for seed in range(count)]
    with context.Manager() as manager, ProcessPoolExecutor(count, context) as pool:
        barrier = manager.Barrier(count, timeout=600)  # if one of them fails, the others end, too
        same = ([each] * count for each in (updates, threads, barrier))
        rates = list(pool.map(loop_rate, seeded, *same))
    each = ", ".join(f"{rate:.2f}" for rate in rates)
    print(
        f"the training loop, {count} side by side: {sum(rates):.2f} decisions a second ({each})\n"
    )


def report_run(config: Config, learning: float, decision: float, how: str) -> None:
    """Print how long a run of 100K environment steps takes.

    Args:
        config: of the run.
        learning: seconds of a decision with an update.
        decision: seconds of a decision without one.
        how: where ``learning`` is from.
    """
    decisions = config.environment_steps // config.action_repeat
    evaluations = config.environment_steps // config.evaluate_every
    # The episodes of an evaluation go on side by side, as they do where there are cores for them.
    watched = evaluations * config.episode_steps // config.action_repeat
    seconds = (decisions - config.initial_steps) * learning
    seconds += (config.initial_steps + watched) * decision
    print(f"{config.environment_steps:,} environment steps of {config.task}: ", end="")
    print(f"{seconds / 60:.1f} minutes, {how}", end="")
    print("   (target on a GPU: 4)\n" if config.task == "cartpole_swingup" else "\n")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch", type=int, nargs="+", default=[128, 512])
    parser.add_argument("--precision", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--threads", type=int, default=1, help="a cell's default is 1, too")
    parser.add_argument("--task", choices=TASKS, default="cartpole_swingup")
    parser.add_argument(
        "--updates",
        type=int,
        default=200 if DEVICE == "cuda" else 4,
        help="timed of each batch size; an even number, for the actor steps at every second",
    )
    parser.add_argument("--transitions", type=int, default=2000, help="that the replay holds")
    parser.add_argument("--processes", type=int, default=0, help="training loops side by side")
    options = parser.parse_args()
    if options.updates < 2 or options.updates % 2:
        parser.error(f"--updates is an even number, at least 2; got {options.updates}")
    torch.set_num_threads(options.threads)
    set_tf32(True)
    on_gpu = DEVICE == "cuda"
    where = torch.cuda.get_device_name() if on_gpu else f"{options.threads} CPU threads"
    tf32 = " (TF32)" if on_gpu and options.precision == "float32" else ""
    print(f"{options.precision}{tf32}, {where}\n")
    config = Config(
        task=options.task,
        action_repeat=ACTION_REPEATS[options.task],
        precision=options.precision,
    )
    decision = report_environment(options.task)
    with tempfile.TemporaryDirectory() as folder:
        report_bytes(Path(folder) / "empty")
        replay, stacked = fill(Path(folder) / "replay", config, options.transitions)
        for size in options.batch:
            config = dataclasses.replace(config, batch_size=size)
            print(f"---- batch {size} ----\n")
            learning = report_update(config, replay, options.updates)
            report_sampling(config, replay, stacked)
            report_objectives(config, replay, options.updates if on_gpu else options.updates // 2)
            how = "all one after the other"
            if on_gpu:
                report_captured(config, replay, options.updates)
                rate = loop_rate(config, options.updates, options.threads)
                print(f"the training loop, captured: {rate:.1f} decisions a second\n")
                report_run(config, 1 / rate, decision, "by the training loop")
            else:
                report_run(config, learning + decision, decision, how)
            if options.processes:
                report_processes(config, options.updates, options.threads, options.processes)
        replay.delete()
    missing = [] if options.processes else ["processes side by side (--processes N)"]
    if not on_gpu:
        missing.append(
            "for lack of a GPU: captured graphs beside launched updates, TF32, bfloat16 on a GPU, "
            "the training loop on one, the targets of 100 updates a second and of 4 minutes"
        )
    print(f"not measured: {'; '.join(missing)}" if missing else "everything was measured")


if __name__ == "__main__":
    main()
