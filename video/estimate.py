"""Time and memory of a run, estimated from a few steps on made-up clips.

Shapes: n training and m test videos, B clips, T frames of a clip, S side in pixels.

A step, augmentation included, is timed with few videos and with more, and its line drawn on to the
run's batch; so is a pass of the frozen encoder. On a CPU the timed clips are shorter and smaller
than the run's where those are large, and the time of a clip grows with its pixels. The evaluation
is counted in passes: windows, crops, and the probe's views. How many videos there are, and how long
they are, comes from the data set where it is, and is known otherwise. Left out: what losses other
than InfoNCE add, and decoding. Optical flow is prepared once for all runs; where it is not there
yet, a line says how long that takes.
"""

import dataclasses
import functools
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from shared import Criterion, Objective
from shared.experiment.tables import Config as AnyConfig
from shared.experiment.tables import canonical_json
from video.augment import centre, views, windows
from video.config import EMBEDDED, INFO_NCE, Config
from video.data import FOLDER, LISTS, Video, Videos, flow_folder, stored_side
from video.encoder import Networks
from video.evaluate import embed_clips
from video.train import train_step

BASELINE = 0.6e9  # bytes of a process that has imported everything and done nothing
# Bytes that a step keeps for each pixel of each frame of a clip, at width 1 in bfloat16.
KEPT = 480.0
PASSING = 0.2  # of these, what a frozen network holds at a time
COPIES = 4  # of each parameter: itself, its gradient, and Adam's two states; a teacher is a fifth
EVALUATED = 64  # clips that pass the frozen encoder at a time
TIMED = (4, 8)  # videos of the timed steps
TIMED_FRAMES, TIMED_SIDE = 8, 64  # at most, on a CPU
# Training and test videos where the data set is not there: of nine classes, and of the stand-in.
COUNTS = {EMBEDDED: (24, 12)}
USUAL = (819, 306)
FRAMES = {EMBEDDED: 16}  # of a video, on average
USUAL_FRAMES = 91
FLOW = 0.34  # seconds of TV-L1 for a frame of 128 x 96, on one core

FASTER = {"tvl1": 1, "dis": 125}  # methods of flow, compared with TV-L1

# What a clip costs is decided by these; runs that agree in them are calibrated once.
DECIDING = (
    "network",
    "strides",
    "policy",
    "head_batch_norm",
    "modality",
    "clip_frames",
    "size",
    "sampling",
    "width",
    "head_hidden",
    "head_output",
    "method",
    "queue",
    "precision",
)


@dataclass(frozen=True)
class Calibration:
    """What the networks of a configuration cost on this machine.

    Attributes:
        per_step: seconds of a step, however small its batch.
        per_video: seconds of a step for each video of its batch, both clips and their augmentation.
        forward: seconds for each clip that the frozen encoder sees.
        fixed: bytes of parameters, gradients, Adam's states and teacher.
    """

    per_step: float
    per_video: float
    forward: float
    fixed: int


_calibrations: dict[str, Calibration] = {}


def estimate(config: AnyConfig, data_root: Path) -> tuple[float, float]:
    """Minutes and peak gigabytes (of 1e9 bytes) of one run on this machine's device.

    Args:
        config: of the run, a :class:`video.config.Config`.
        data_root: where the videos, and what was decoded of them, are looked for.
    """
    assert isinstance(config, Config)
    calibration = _calibrated(config)
    train, test = lengths_of(config, data_root)
    if config.modality == "flow":
        count, frames = len(train) + len(test), sum(train) + sum(test)
        _state_flow(config.dataset, config.flow, data_root, count, frames)
    steps = config.epochs * (len(train) // config.batch_size) if config.train else 0
    seconds = steps * (calibration.per_step + config.batch_size * calibration.per_video)
    seconds += calibration.forward * passes(config, train, test)

    per_clip = KEPT * config.width * config.clip_frames * config.size**2
    if config.precision == "float32" or not torch.cuda.is_available():
        per_clip *= 2
    clips = PASSING * EVALUATED
    if config.train:  # MoCo's keys have no gradient
        clips = max(clips, config.batch_size * (2 if config.method == "simclr" else 1 + PASSING))
    return seconds / 60, (BASELINE + calibration.fixed + clips * per_clip) / 1e9


def passes(config: Config, train: list[int], test: list[int]) -> int:
    """How many clips the evaluation of a run has the frozen encoder see.

    Args:
        config: its ``clip_frames``, ``windows``, ``probe_views`` and ``probe_epochs`` count.
        train: frames of each training video.
        test: frames of each test video.
    """
    its_train, its_test = (
        sum(len(windows(length, config.clip_frames, config.windows)) for length in lengths)
        for lengths in (train, test)
    )
    probe = (config.probe_views or config.probe_epochs) * len(train)
    return its_train + its_test + probe + 10 * its_test


def lengths_of(config: Config, data_root: Path) -> tuple[list[int], list[int]]:
    """Frames of each training and each test video of a split.

    A video that is there and was not decoded yet has the average number.
    """
    frames = FRAMES.get(config.dataset, USUAL_FRAMES)
    kept: dict[str, int] = {}
    for file in (data_root / "prepared" / "video").glob(f"{config.dataset}-*/index.json"):
        index = json.loads(file.read_text(encoding="utf-8"))
        kept |= dict(zip(index["names"], index["lengths"], strict=True))
    counts = COUNTS.get(config.dataset, USUAL)
    parts = []
    for kind, count in zip(("train", "test"), counts, strict=True):
        file = data_root / LISTS / f"{kind}list{config.split:02d}.txt"
        if config.dataset == EMBEDDED or not file.is_file():
            parts.append([frames] * count)
            continue
        listed = (line.split()[0] for line in file.read_text().splitlines() if line.strip())
        there = [data_root / FOLDER / path for path in listed]
        parts.append([kept.get(file.stem, frames) for file in there if file.is_file()])
    return parts[0], parts[1]


@functools.cache
def _state_flow(dataset: str, method: str, data_root: Path, videos: int, frames: int) -> None:
    """Say once how long it takes to prepare the flow that lacks."""
    folder = flow_folder(data_root, dataset, method)
    lacking = videos - len(list(folder.glob("v_*.zip")))
    if lacking > 0 and dataset != EMBEDDED:
        minutes = FLOW / FASTER[method] * frames * lacking / videos / 60
        print(
            f"optical flow: {lacking} of {videos} videos have none yet; it is computed once, "
            f"about {minutes:.0f} minutes of one core for frames of 128 x 96, in no estimate here"
        )


def _calibrated(config: Config) -> Calibration:
    """The calibration of what the configuration costs, made once."""
    alike = dataclasses.replace(
        Config(),
        objective=Objective(INFO_NCE.loss, projection=config.objective.projection),
        **{name: getattr(config, name) for name in DECIDING},
    )
    name = canonical_json(alike)
    if name not in _calibrations:
        _calibrations[name] = _calibrate(alike)
    return _calibrations[name]


def _calibrate(config: Config) -> Calibration:
    """Time a few steps and passes of the configuration's networks on the machine's device."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    timed = config
    if device.type == "cpu":
        timed = dataclasses.replace(
            config,
            clip_frames=min(config.clip_frames, TIMED_FRAMES),
            size=min(config.size, TIMED_SIDE),
        )
    larger = _pixels(config) / _pixels(timed)
    networks = Networks(timed, queue=config.queue).to(device)
    criterion = Criterion(timed.objective, networks.dim).to(device)
    modules = nn.ModuleList([networks, criterion])
    optimiser = torch.optim.Adam(modules.parameters(), lr=timed.learning_rate, fused=True)
    networks.train()
    videos = made_up(timed, TIMED[-1])

    def step(count: int) -> None:
        pair = views(videos, torch.arange(count), timed, 0, device=device)
        train_step(timed, networks, criterion, optimiser, pair, 1)
        networks.follow(timed.teacher_momentum)

    def forward(count: int) -> None:
        clips = videos.frames.view(TIMED[-1], -1, *videos.frames.shape[1:])[:count]
        clips = clips.transpose(1, 2).to(device)
        embed_clips(networks.encoder, centre(clips, timed.size), timed.precision)

    times = [_seconds(device, step, count) for count in TIMED]
    per_video = max(0.0, times[1] - times[0]) / (TIMED[1] - TIMED[0])
    copies = COPIES + (config.method == "moco")
    return Calibration(
        per_step=max(0.0, times[0] - TIMED[0] * per_video),
        per_video=larger * per_video,
        forward=larger * _seconds(device, forward, TIMED[1]) / TIMED[1],
        fixed=4 * copies * sum(p.numel() for p in modules.parameters() if p.requires_grad),
    )


def _pixels(config: Config) -> int:
    return config.clip_frames * config.size**2


def made_up(config: Config, count: int) -> Videos:
    """Videos of noise, each as long as a clip, in frames of 4 : 3 as they are kept."""
    height = stored_side(config.size)
    shape = (count * config.clip_frames, 3, height, height * 4 // 3)
    generator = torch.Generator().manual_seed(0)
    return Videos(
        tuple(Video(f"v_Noise_g01_c{place:02d}", 0, 1, True) for place in range(count)),
        ("Noise",),
        torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator),
        torch.arange(count) * config.clip_frames,
        torch.full((count,), config.clip_frames),
    )


def _seconds(device: torch.device, work: Callable[[Any], None], argument: Any) -> float:
    """Time of ``work(argument)``, the shorter of two: the first also chooses kernels.

    On the CPU it is processor time for each thread, which other processes do not stretch.
    """
    times = []
    for _ in range(2):
        start = _clock(device)
        work(argument)
        times.append(_clock(device) - start)
    return min(times)


def _clock(device: torch.device) -> float:
    if device.type == "cpu":
        return time.process_time() / torch.get_num_threads()
    torch.cuda.synchronize()
    return time.perf_counter()
