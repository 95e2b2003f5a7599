"""Clips that are ready for the device a minute: by slices and threads, and as it was done before.

Run it as ``python benchmarks/clips.py``. Copied are the clips of two views of random videos, by the
loader that training uses; nothing is augmented. "Before" is the way until then, on one thread: all
frames of a batch at one index, and a copy of them (on a GPU into page-locked memory). Ways take
turns, and the best of each counts, since other programs can only take time away.

A core's clips a minute are those of a minute of processor time, which other programs take less
from than from a minute of the clock; both are printed.
"""

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from unittest import mock

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from shared.pixels import to_device
from video import loading
from video.augmentation import sample_clips
from video.config import Config
from video.data import Video, Videos, stored_side

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
CONFIG = Config()  # of the paper: clips of 32 x 128^2, two for each of 128 videos
FRAMES = 96  # of a video


def made_up(count: int) -> Videos:
    """Videos of random pixels, as large as those of UCF-101 are kept."""
    height = stored_side(CONFIG.size)
    shape = (count * FRAMES, 3, height, height * 4 // 3)
    return Videos(
        tuple(Video(f"v_Noise_g01_c{number:02d}", 0, 1, True) for number in range(count)),
        ("Noise",),
        torch.randint(0, 256, shape, dtype=torch.uint8),
        torch.arange(count) * FRAMES,
        torch.full((count,), FRAMES),
    )


Way = Callable[[Videos, list[Tensor]], Iterator[object]]


def before(videos: Videos, chosen: list[Tensor]) -> Iterator[object]:
    """The clips of each batch at one index, and a copy of them."""
    for step, index in enumerate(chosen):
        starts = sample_clips(
            videos, index, CONFIG.clip_frames, seed=0, epoch=step, sampling=CONFIG.sampling
        )
        pair = []
        for start in starts:
            frame = (videos.start[index] + start)[:, None] + torch.arange(CONFIG.clip_frames)
            clips = videos.frames[frame.flatten()]
            pair.append(to_device(clips, DEVICE) if DEVICE.type == "cuda" else clips.clone())
        yield pair


def with_threads(threads: int, videos: Videos, chosen: list[Tensor]) -> Iterator[object]:
    """The clips of each batch by the loader of training."""
    steps = [(index, step) for step, index in enumerate(chosen)]
    with (
        mock.patch.object(loading, "RESIDENT", 0.0),
        mock.patch.object(loading, "augment", lambda clips, *_, **__: clips),
    ):
        yield from loading.batches(CONFIG, videos, steps, device=DEVICE, workers=threads)


def main() -> None:
    """Time both ways, and print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--videos", type=int, default=96, help="made up; 8 MB each")
    parser.add_argument("--batch", type=int, default=CONFIG.batch_size)
    parser.add_argument("--steps", type=int, default=4, help="timed, of each way in a turn")
    parser.add_argument("--turns", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    videos = made_up(options.videos)
    # The first makes buffers and the last is copied ahead: neither is timed.
    chosen = [torch.randint(options.videos, (options.batch,)) for _ in range(options.steps + 2)]
    ways: dict[str, Way] = {"before": before}
    for threads in options.threads:
        ways[f"{threads} thread{'s' * (threads > 1)}"] = partial(with_threads, threads)
    seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    for _ in range(options.turns):
        for name, way in ways.items():
            batches = way(videos, chosen)
            next(batches)
            start = time.perf_counter(), time.process_time()
            for _ in range(options.steps):
                next(batches)
                if DEVICE.type == "cuda":
                    torch.cuda.synchronize()
            seconds[name].append((time.perf_counter() - start[0], time.process_time() - start[1]))
            del batches
    clips = 2 * options.batch * options.steps
    print(f"Clips of {CONFIG.clip_frames} frames, batches of 2 x {options.batch}; {DEVICE}\n")
    print("| way | clips a minute | clips a minute of a core | of 2 x 128 clips |")
    print("|---|---|---|---|")
    for name, times in seconds.items():
        clock, work = (60 * clips / min(values) for values in zip(*times, strict=True))
        print(f"| {name} | {clock:.0f} | {work:.0f} | {work / 256:.0f} steps |")


if __name__ == "__main__":
    main()
