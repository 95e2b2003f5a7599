"""Decoding, a training step by its parts, what the losses add, and optical flow, on real videos.

Run it as ``python benchmarks/video.py``, with UCF-101 below ``--data-root`` or SUITE_DATA, or with
``--embedded`` on the stand-in made from scikit-learn's pictures. Some videos of each class that is
present are laid out in a folder of their own for the time of the measurement; nothing is written
beside the data. It prints:

* frames and clips that are decoded per second of one core;
* a training step with the cache warm, and the share of it that is not the network: sampling,
  gathering of frames, and augmentation, at the short tier's size and, with ``--full``, the paper's;
* SimCLR's loss beside MMCL's, closed form and projected gradient;
* a step of MoCo and of MMCL beside SimCLR's;
* frames of TV-L1 flow per second of one core.

On a machine with a GPU, steps are those of the paper's network on clips of 16 x 112 x 112, with the
time that 300 epochs of nine classes would take; on a CPU seconds are processor time for each
thread, which other processes do not stretch. Its last lines say what was not measured.
"""

import argparse
import dataclasses
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from shared import Criterion, two_views
from video.augmentation import augment, gather_clips, sample_clips, views
from video.config import EMBEDDED, Config
from video.data import FOLDER, LISTS, UCF101, Videos, decoding_speed, load
from video.decoding import decode
from video.encoder import Networks
from video.flow import flow_frames
from video.tables import CLOSED, TABLE_5
from video.train import queue_of, train_step

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
TIMED_ROWS = ("SimCLR", "MMCL INV, both views", "MMCL PGD, both views", "MoCo-v2")
TRAINING, EPOCHS = 819, 300  # videos of nine classes, and the paper's epochs
GPU: dict[str, Any] = {"clip_frames": 16, "size": 112}
PAIRS = 7  # frames of a video whose flow is timed, less one
ROUNDS = 5  # of what takes milliseconds


def clock() -> float:
    """Seconds: on a CPU of the processor, for each thread."""
    if DEVICE.type == "cpu":
        return time.process_time() / torch.get_num_threads()
    torch.cuda.synchronize()
    return time.perf_counter()


def seconds_of(work: Callable[[], Any], rounds: int) -> float:
    """Of ``work``, median over so many rounds after one that warms up."""
    work()
    seconds = []
    for _ in range(rounds):
        start = clock()
        work()
        seconds.append(clock() - start)
    return statistics.median(seconds)


def lay_out(source: Path, root: Path, count: int) -> None:
    """Links to the first ``count`` listed training videos of a few classes, and to their lists."""
    lines = (source / LISTS / "trainlist01.txt").read_text().splitlines()
    listed = [line.split()[0] for line in lines if line.strip()]
    present = [path for path in listed if (source / FOLDER / path).is_file()]
    (root / LISTS).mkdir(parents=True)
    (root / LISTS / "classInd.txt").symlink_to((source / LISTS / "classInd.txt").resolve())
    kept = present[:: max(1, len(present) // count)][:count]
    for path in kept:
        (root / FOLDER / path).parent.mkdir(parents=True, exist_ok=True)
        (root / FOLDER / path).symlink_to((source / FOLDER / path).resolve())
    (root / LISTS / "trainlist01.txt").write_text("".join(f"{path} 1\n" for path in kept))
    (root / LISTS / "testlist01.txt").write_text("")


def report_decoding(files: list[Path], config: Config) -> None:
    """Print frames and clips decoded per second of one core."""
    speed = decoding_speed(files, config.size)
    clips = speed / config.clip_frames
    height, width, _ = next(decode(files[0])).shape
    print(f"decoding, {len(files)} files of {width} x {height}, for clips of {config.size}")
    print(f"  frames a second and core             {speed:9.0f}")
    print(f"  clips of {config.clip_frames:2d} frames                   {clips:9.0f}\n")


def report_flow(files: list[Path]) -> None:
    """Print frames of TV-L1 per second of one core."""
    frames = np.stack(list(decode(files[0]))[: PAIRS + 1])
    start = time.process_time()
    flow_frames(frames)
    seconds = (time.process_time() - start) / (len(frames) - 1)
    height, width = frames.shape[1:3]
    print(f"TV-L1 flow of {width} x {height}, one video")
    print(f"  frames a second and core             {1 / seconds:9.2f}\n")


def networks_of(config: Config) -> tuple[Networks, Criterion, torch.optim.Optimizer]:
    """What a run trains, in training mode."""
    torch.manual_seed(0)
    networks = Networks(config, queue=queue_of(config, TRAINING)).to(DEVICE).train()
    criterion = Criterion(config.objective, networks.dim).to(DEVICE)
    parameters = nn.ModuleList([networks, criterion]).parameters()
    return networks, criterion, torch.optim.Adam(parameters, lr=1e-3, fused=True)


def row_config(label: str, config: Config) -> Config:
    """The configuration of a row of the table at the size of ``config``."""
    (row,) = (row for row in TABLE_5.rows if row.label == label)
    return dataclasses.replace(config, **row.changes)


def report_step(videos: Videos, config: Config, rounds: int) -> None:
    """Print a step of SimCLR, and of it what is not the network."""
    config = row_config("SimCLR", config)
    networks, criterion, optimiser = networks_of(config)
    index = batch_index(videos, config.batch_size)
    pair = views(videos, index, config, 0, device=DEVICE)

    def sample() -> tuple[Tensor, Tensor]:
        return sample_clips(
            videos,
            index,
            config.clip_frames,
            seed=0,
            epoch=0,
            sampling=config.sampling,
        )

    start, _ = sample()

    def gather() -> Tensor:
        return gather_clips(videos, index, start, config.clip_frames).to(DEVICE)

    clips = gather()

    def augmented() -> Tensor:
        return augment(
            clips,
            config.size,
            seed=0,
            epoch=0,
            samples=index,
            view=0,
            policy="flow" if config.modality == "flow" else "coclr",
            sampling=config.sampling,
        )

    parts = {
        "sampling": seconds_of(sample, ROUNDS),
        "gathering of two clips": 2 * seconds_of(gather, ROUNDS),
        "augmentation of two clips": 2 * seconds_of(augmented, rounds),
    }
    network = seconds_of(
        lambda: train_step(config, networks, criterion, optimiser, pair, 1), rounds
    )
    other = sum(parts.values())
    whole = network + other
    print(
        f"a step of SimCLR, {config.batch_size} videos, two clips of {shape_of(config)}, width "
        f"{config.width:g}, {config.precision if DEVICE.type == 'cuda' else 'float32'}"
    )
    for name, seconds in (*parts.items(), ("network, loss, optimiser", network)):
        print(f"  {name:36s} {1e3 * seconds:9.1f} ms  {seconds / whole:6.1%}")
    print(f"  not the network                      {other / whole:9.1%}   (target: under 20%)")
    print(f"  videos a second                      {config.batch_size / whole:9.1f}")
    if DEVICE.type == "cuda":
        minutes = EPOCHS * (TRAINING // config.batch_size) * whole / 60
        print(f"  300 epochs of nine classes           {minutes:9.1f} minutes   (target: under 10)")
    print()


def shape_of(config: Config) -> str:
    """Frames, height and width of a clip."""
    return f"{config.clip_frames} x {config.size} x {config.size}"


def batch_index(videos: Videos, size: int) -> Tensor:
    """Places of as many videos, some again and again where there are fewer."""
    return torch.arange(size) % len(videos.videos)


def report_losses(config: Config) -> None:
    """Print loss and its gradient alone for each row, in one batch of embeddings."""
    shape = (2, config.batch_size, config.head_output)
    first, second = torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(DEVICE)
    print(f"loss and gradient, batch of {config.batch_size} videos, {config.head_output} numbers")
    alone = 0.0
    for name in TIMED_ROWS[:3]:
        criterion = Criterion(row_config(name, config).objective, 8).to(DEVICE)
        anchors = "both" if name == "SimCLR" else "second"

        def work(criterion: Criterion = criterion, anchors: Any = anchors) -> None:
            leaf = first.clone().requires_grad_()
            criterion(two_views(leaf, second, anchors=anchors), step=1)[0].backward()

        seconds = seconds_of(work, ROUNDS)
        alone = alone or seconds
        print(f"  {name:36s} {1e3 * seconds:9.2f} ms  {seconds / alone:6.2f} of SimCLR's")
    print()


def report_methods(videos: Videos, config: Config, rounds: int) -> None:
    """Print the step of MMCL and MoCo beside SimCLR's, of the network alone."""
    print(f"steps without loading, {config.batch_size} videos, {shape_of(config)}")
    base = 0.0
    for name in TIMED_ROWS:
        changed = row_config(name, config)
        networks, criterion, optimiser = networks_of(changed)
        pair = views(videos, batch_index(videos, config.batch_size), changed, 0, device=DEVICE)

        def step(parts: tuple[Any, ...] = (changed, networks, criterion, optimiser, pair)) -> None:
            train_step(*parts, 1)
            parts[1].follow(0.999)

        seconds = seconds_of(step, rounds)
        base = base or seconds
        print(f"  {name:36s} {1e3 * seconds:9.1f} ms  {seconds / base:6.2f} of SimCLR's")
    print()


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--embedded", action="store_true", help="without UCF-101, on the stand-in")
    parser.add_argument(
        "--data-root", type=Path, default=Path(os.environ.get("SUITE_DATA", "data"))
    )
    parser.add_argument("--full", action="store_true", help="on a CPU: the paper's size, too")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--videos", type=int, default=64, help="that are decoded")
    parser.add_argument("--batch", type=int, help="default: the tier's, 8 with --full on a CPU")
    parser.add_argument("--rounds", type=int, default=3, help="timed steps")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    on_gpu = DEVICE.type == "cuda"
    if not options.embedded and not (options.data_root / LISTS / "trainlist01.txt").is_file():
        parser.error(f"no UCF-101 below {options.data_root}; name its folder, or give --embedded")
    where = torch.cuda.get_device_name() if on_gpu else f"{options.threads} CPU thread(s)"
    print(f"{'stand-in' if options.embedded else 'UCF-101'}, {where}\n")

    short = dataclasses.replace(Config(), **CLOSED)
    sizes = [dataclasses.replace(Config(), **GPU)] if on_gpu else [short]
    if options.full and not on_gpu:
        sizes.append(dataclasses.replace(Config(), batch_size=8))
    with tempfile.TemporaryDirectory() as folder:
        root, dataset = Path(folder), EMBEDDED if options.embedded else UCF101
        if not options.embedded:
            lay_out(options.data_root, root, options.videos)
        for place, config in enumerate(sizes):
            if options.batch:
                config = dataclasses.replace(config, batch_size=options.batch)
            videos = load(dataset, root, size=config.size).of(train=True)
            videos.frames.sum()  # read once: the cache is warm
            files = sorted(root.rglob(f"{FOLDER}/*/v_*.avi"))[: options.videos]
            report_decoding(files, config)
            report_step(videos, config, options.rounds)
            report_losses(config)
            if place == 0:
                report_methods(videos, config, options.rounds)
        report_flow(files)
    missing = [] if on_gpu or options.full else ["the paper's size (--full)"]
    if not on_gpu:
        missing.append(
            "for lack of a GPU: steps of 16 x 112 x 112, the target of 10 minutes for 300 epochs"
        )
    print(f"not measured: {'; '.join(missing)}" if missing else "everything was measured")


if __name__ == "__main__":
    main()
