"""Crops of images a second on one core: from files, and from the same images prepared.

Run it as ``python benchmarks/images.py``, or with ``--images FOLDER`` on image files of your own.
Without a folder it uses parts of scikit-learn's two photographs as JPEG of 500 x 375 pixels, the
most frequent size in ImageNet. The training loader makes two crops of 224 pixels of each. The row
"as JPEG" shows what storing the prepared images compressed would cost: they are decoded again.

The variants alternate, and the fastest pass of each is reported, since other programs can only slow
it down. Times are processor times, so that the ratios hold on a busy machine as well. Reading from
disk is excluded: the files are cached in memory.
"""

import argparse
import io
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from sklearn.datasets import load_sample_images

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from vision import prepared
from vision.augmentation import POLICIES
from vision.data import stream
from vision.images import ImageFiles, decode

SIDE, QUALITY = 256, 95  # of what is prepared
POLICY, SIZE, VIEWS = POLICIES["cmc"], 224, 2  # of ImageNet-100's tables


def photographs(folder: Path, count: int) -> list[Path]:
    """Parts of scikit-learn's photographs as JPEG files of 500 x 375 pixels."""
    generator = np.random.default_rng(0)
    photos = [Image.fromarray(pixels) for pixels in load_sample_images().images]  # 640 x 427
    files = [folder / f"{number}.jpg" for number in range(count)]
    for number, file in enumerate(files):
        left = int(generator.integers(640 - 569))
        box = photos[number % 2].crop((left, 0, left + 569, 427))
        box.resize((500, 375), Image.Resampling.BICUBIC).save(file, quality=QUALITY)
    return files


def as_jpeg(image: torch.Tensor) -> bytes:
    """A prepared image, compressed."""
    stream = io.BytesIO()
    Image.fromarray(image.permute(1, 2, 0).numpy()).save(stream, "JPEG", quality=QUALITY)
    return stream.getvalue()


def main() -> None:
    """Time all variants, and print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--images", type=Path, help="a folder of image files, at any depth")
    parser.add_argument("--count", type=int, default=256, help="how many images")
    parser.add_argument("--turns", type=int, default=4)
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as temporary:
        files = photographs(Path(temporary), options.count)
        if options.images:
            paths = sorted(path for path in options.images.rglob("*.*") if path.is_file())
            files = paths[:: max(1, len(paths) // options.count)][: options.count]
        folder = Path(temporary, "prepared")
        prepared.prepare(folder, files, SIDE, lambda _: None)
        images = prepared.read(folder, "run again")
        decoded = [images[position] for position in range(len(images))]
        compressed = [as_jpeg(image) for image in decoded]
        batches = list(np.array_split(np.arange(len(files)), max(1, len(files) // 64)))

        def crops(source: ImageFiles) -> None:
            for _ in stream(source, batches, [POLICY] * VIEWS, SIZE, 0, 0):
                pass

        labels = torch.zeros(len(files), dtype=torch.int64)
        from_files = ImageFiles(tuple(files), labels)
        from_prepared = ImageFiles(images, labels)

        def from_jpeg() -> None:
            for content in compressed:
                decode(Image.open(io.BytesIO(content)))
            crops(from_prepared)

        ways: dict[str, tuple[float, Callable[[], None]]] = {
            "files": (sum(file.stat().st_size for file in files), lambda: crops(from_files)),
            f"prepared, as JPEG of quality {QUALITY}": (sum(map(len, compressed)), from_jpeg),
            "prepared": (sum(image.numel() for image in decoded), lambda: crops(from_prepared)),
        }
        seconds: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(options.turns):
            for name, (_, way) in ways.items():
                start = time.process_time()
                way()
                seconds[name].append(time.process_time() - start)
    sizes = {f"{image.shape[2]} x {image.shape[1]}" for image in decoded}
    print(
        f"{len(files)} images, prepared as {', '.join(sorted(sizes)[:3])}; {VIEWS} crops of each\n"
    )
    print("| read from | images/s of a core | times as many | kB an image |")
    print("|---|---|---|---|")
    slowest = min(seconds["files"])
    for name, (size, _) in ways.items():
        best = min(seconds[name])
        kilobytes = size / len(files) / 1e3
        print(f"| {name} | {len(files) / best:.0f} | {slowest / best:.1f} | {kilobytes:.0f} |")


if __name__ == "__main__":
    main()
