"""The embedded dataset: videos made from the two images that ship with scikit-learn."""

from collections.abc import Sequence
from pathlib import Path

import av
import numpy as np
from PIL import Image
from sklearn.datasets import load_sample_images

from shared.experiment.files import write_atomically
from video.config import FOLDER, LISTS, SPLITS

_MOVES = ("Pan", "Rotate", "Zoom")
_PICTURES = ("China", "Flower")  # of scikit-learn, in its order
_GROUPS = 6  # one video of each group and class; split 1 tests the first two
_WIDTH, HEIGHT = 48, 36


def write(folder: Path) -> None:
    """Write videos of a window that moves over an image, and their three splits."""
    # The window is about as large as the frames, to avoid aliasing.
    pictures = [Image.fromarray(pixels).reduce(4) for pixels in load_sample_images().images]
    classes = [f"{move}{picture}" for move in _MOVES for picture in _PICTURES]
    lists: dict[str, list[str]] = {
        "classInd.txt": [f"{number} {name}" for number, name in enumerate(classes, start=1)]
    }
    for label, name in enumerate(classes):
        (folder / FOLDER / name).mkdir(parents=True)
        for group in range(1, _GROUPS + 1):
            path = f"{name}/v_{name}_g{group:02d}_c01.avi"
            picture = pictures[label % len(_PICTURES)]
            move = _MOVES[label // len(_PICTURES)]
            _write_avi(folder / FOLDER / path, _moving_window(picture, move, [label, group]))
            for split in SPLITS:
                tested = (group + 1) // 2 == split
                line = path if tested else f"{path} {label + 1}"
                lists.setdefault(f"{'test' if tested else 'train'}list{split:02d}.txt", []).append(
                    line
                )
    for file, lines in lists.items():
        write_atomically(folder / LISTS / file, "\n".join(lines) + "\n")


def _moving_window(picture: Image.Image, move: str, seed: Sequence[int]) -> list[Image.Image]:
    """12 to 16 frames with random position, direction and speed."""
    generator = np.random.default_rng(seed)
    frames = int(generator.integers(12, 17))
    middle = np.array(picture.size) / 2 + generator.uniform(-12, 12, size=2)
    direction = generator.uniform(0, 2 * np.pi)
    speed = generator.choice([-1, 1]) * generator.uniform(0.7, 1.3)
    images = []
    for time_ in np.linspace(-1, 1, frames) * speed:
        angle, scale, centre = 0.0, 1.0, middle
        if move == "Pan":
            centre = middle + 20 * time_ * np.array([np.cos(direction), np.sin(direction)])
        elif move == "Rotate":
            angle = np.pi / 4 * time_
        else:
            scale = 1.4**time_
        # Where the pixel (x, y) of a frame lies in the picture: x' = a x + b y + c, y' = d x + ...
        a, b = scale * np.cos(angle), -scale * np.sin(angle)
        c = centre[0] - a * _WIDTH / 2 - b * HEIGHT / 2
        f = centre[1] + b * _WIDTH / 2 - a * HEIGHT / 2
        images.append(
            picture.transform(
                (_WIDTH, HEIGHT),
                Image.Transform.AFFINE,
                (a, b, c, -b, a, f),
                Image.Resampling.BICUBIC,
            )
        )
    return images


def _write_avi(file: Path, images: Sequence[Image.Image]) -> None:
    """Write an AVI file in MPEG-4, the codec of UCF-101."""
    with av.open(str(file), "w", format="avi") as container:
        stream = container.add_stream("mpeg4", rate=25)
        stream.width, stream.height = images[0].size
        stream.pix_fmt = "yuv420p"
        stream.bit_rate = 1_000_000
        stream.codec_context.thread_count = 1
        for image in images:
            container.mux(stream.encode(av.VideoFrame.from_image(image)))
        container.mux(stream.encode())
