"""Frames of a video file: by the reader of videos, and by PyAV's own conversion of each frame.

Run it as ``python benchmarks/decoding.py [FILE ...]``; without a file, on a video of noise as large
as those of UCF-101. The two take turns, and the best of each counts. Both give the same pixels.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import av
import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from video.decoding import decode

HEIGHT, WIDTH, FRAMES = 240, 320, 180


def each_by_itself(file: Path) -> Iterator[np.ndarray]:
    """As PyAV's documentation has it: each frame is converted with a pool of threads of its own."""
    with av.open(str(file)) as container:
        container.streams.video[0].codec_context.thread_count = 1
        for frame in container.decode(video=0):
            yield frame.to_ndarray(format="rgb24")


def write_noise(file: Path) -> None:
    """Smooth noise that moves."""
    noise = np.random.default_rng(0).integers(0, 256, (HEIGHT // 8, WIDTH // 8 + FRAMES, 3))
    smooth = noise.astype(np.uint8).repeat(8, 0).repeat(8, 1)
    with av.open(str(file), "w") as container:
        stream = container.add_stream("mpeg4", rate=25)
        stream.height, stream.width, stream.pix_fmt = HEIGHT, WIDTH, "yuv420p"
        for start in range(FRAMES):
            pixels = np.ascontiguousarray(smooth[:, start : start + WIDTH])
            container.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")))
        container.mux(stream.encode(None))


def main() -> None:
    """Time both, and print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("files", nargs="*", type=Path)
    parser.add_argument("--turns", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        files = options.files or [Path(folder, "noise.avi")]
        if not options.files:
            write_noise(files[0])
        print("| file | frames | ms a frame | each by itself | ratio | of processor time |")
        print("|---|---|---|---|---|---|")
        for file in files:
            for pair in zip(decode(file), each_by_itself(file), strict=True):
                assert np.array_equal(*pair), file
            times: dict[str, list[tuple[float, float]]] = {"ours": [], "theirs": []}
            for _ in range(options.turns):
                for name, way in (("ours", decode), ("theirs", each_by_itself)):
                    start = time.perf_counter(), time.process_time()
                    count = sum(1 for _ in way(file))
                    end = time.perf_counter(), time.process_time()
                    times[name].append((end[0] - start[0], end[1] - start[1]))
            ours, theirs = (
                [1000 * min(values) / count for values in zip(*times[name], strict=True)]
                for name in ("ours", "theirs")
            )
            ratios = [f"{b / a:.1f}" for a, b in zip(ours, theirs, strict=True)]
            cells = [file.name, str(count), f"{ours[0]:.2f}", f"{theirs[0]:.2f}", *ratios]
            print(f"| {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
