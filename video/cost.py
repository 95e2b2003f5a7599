"""Time and memory of a run, estimated from a few steps of its loop on made-up clips.

Shapes: n training and m test videos, B clips, T frames of a clip, S side in pixels.

On a CPU the timed clips are shorter and smaller than the run's where those are large, and the cost
of a clip grows with its pixels. The evaluation is counted in passes (windows, crops, and the
probe's views), a pass as its share of a training step; features without training are timed by
themselves. How many videos there are, and how long they are, comes from the data set where it is,
and is known otherwise. Left out: decoding. Optical flow is prepared once for all runs; where it is
not there yet, a line says how long that takes.
"""

import dataclasses
import functools
import json
from pathlib import Path

import torch

from shared import Objective
from shared.experiment.runs import Run
from shared.experiment.trial import Cost, clock, cost_of, seconds_of_loss
from video.augmentation import centre, windows
from video.config import EMBEDDED, FLOORS, INFO_NCE, Config
from video.data import FOLDER, LISTS, Video, Videos, flow_folder, stored_side
from video.encoder import encoder_of
from video.evaluation import embed_clips
from video.train import pretrain

BASELINE = 0.6e9  # bytes of a process that has imported everything and done nothing
# What a video of a batch costs in passes of the encoder: two clips forward, and each way back twice
# as much as forward; MoCo's keys have no way back.
PASSES = {"simclr": 6, "moco": 4}
EVALUATED = 64  # clips that pass the frozen encoder at a time
FROZEN = 0.1  # of the bytes that a step keeps of a video, those that a frozen network holds
SMALLEST, LARGEST = 4, 16  # videos of the timed steps
TIMED_FRAMES, TIMED_SIDE = 8, 64  # at most, on a CPU
# Training and test videos where the data set is not there: of nine classes, and of the stand-in.
COUNTS = {EMBEDDED: (24, 12)}
USUAL = (819, 306)
FRAMES = {EMBEDDED: 16}  # of a video, on average
USUAL_FRAMES = 91
FLOW = 0.34  # seconds of TV-L1 for a frame of 128 x 96, on one core

FASTER = {"tvl1": 1, "dis": 125}  # methods of flow, compared with TV-L1

# What a clip costs is decided by these; runs that agree in them are measured once.
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


def estimate(config: Config, data_root: Path) -> tuple[float, float]:
    """Minutes and peak gigabytes (of 1e9 bytes) of one run on this machine's device.

    Args:
        config: of the run.
        data_root: where the videos, and what was decoded of them, are looked for.
    """
    deciding = {name: getattr(config, name) for name in DECIDING}
    deciding["objective"] = Objective(INFO_NCE.loss, projection=config.objective.projection)
    if not torch.cuda.is_available():
        deciding["clip_frames"] = min(config.clip_frames, TIMED_FRAMES)
        deciding["size"] = min(config.size, TIMED_SIDE)
    larger = config.clip_frames * config.size**2
    larger /= deciding["clip_frames"] * deciding["size"] ** 2
    if config.network in FLOORS:
        frozen = dataclasses.replace(Config(), **deciding)
        cost = Cost(0.0, PASSES[config.method] * seconds_of_pass(frozen), 0.0, 0.0)
    else:
        cost = cost_of(train, Config(), deciding, smallest=SMALLEST, largest=LARGEST)
    per_video, kept = larger * cost.per_item, larger * cost.kept

    train_lengths, test_lengths = lengths_of(config, data_root)
    if config.modality == "flow":
        lengths = train_lengths + test_lengths
        _state_flow(config.dataset, config.flow, data_root, len(lengths), sum(lengths))
    steps = config.epochs * (len(train_lengths) // config.batch_size) if config.train else 0
    step = cost.per_step + config.batch_size * per_video
    if steps:
        step += seconds_of_loss(config.objective, config.batch_size, config.head_output)
    passed = passes(config, train_lengths, test_lengths)
    passed += len(train_lengths) if config.calibrate else 0
    seconds = steps * step + passed * per_video / PASSES[config.method]
    clips = max(FROZEN * EVALUATED, config.batch_size if config.train else 0)
    return seconds / 60, (BASELINE + cost.fixed + clips * kept) / 1e9


def train(config: Config, run: Run) -> None:
    """The loop of a run on videos of noise, four batches of them."""
    pretrain(config, made_up(config, 4 * config.batch_size), run)


def seconds_of_pass(config: Config) -> float:
    """Seconds of a clip's central crop and its feature, of a network that has no training loop."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    encoder = encoder_of(config).to(device)
    frames = made_up(config, LARGEST).frames
    clips = frames.view(LARGEST, config.clip_frames, *frames.shape[1:]).transpose(1, 2)
    times = []
    for _ in range(2):  # the first also chooses kernels
        start = clock()
        embed_clips(encoder, centre(clips.to(device), config.size), config.precision)
        times.append(clock() - start)
    return min(times) / LARGEST


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
