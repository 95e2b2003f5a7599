"""Crops of decoded images of any size, resized without aliasing.

Shapes: H x W pixels of an image, S side of a crop.

Images that Pillow has decoded are also resized by Pillow, as in torchvision's pipelines. Prepared
ones are tensors, which torch resizes in a third of the time. Both compute in integers: the bits do
not depend on the instructions that a CPU has.
"""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn.functional import interpolate

from vision.augmentation import Policy, parameters

Decoded = Image.Image | Tensor  # a tensor is (3, H, W) uint8
# For each view the crops of images, which have these positions in their split.
Crops = Callable[[Sequence[Decoded], np.ndarray], list[list[Decoded]]]


def random_crops(
    images: Sequence[Decoded],
    samples: np.ndarray,
    policies: Sequence[Policy],
    sizes: Sequence[int],
    seed: int,
    epoch: int,
) -> list[list[Decoded]]:
    """For each view the S x S crops with the boxes of its policy.

    samples: positions of the images in their split. sizes: S of each view.
    """
    heights, widths = np.array([_height_and_width(image) for image in images]).T
    views = []
    for view, (policy, size) in enumerate(zip(policies, sizes, strict=True)):
        drawn = parameters(policy, seed, epoch, samples, view, heights, widths)
        boxes = np.stack([drawn.left, drawn.top, drawn.width, drawn.height], axis=1).tolist()
        parts = [_cropped(image, *box) for image, box in zip(images, boxes, strict=True)]
        views.append([_resized(part, size, size, bicubic=policy.bicubic) for part in parts])
    return views


def central_crops(
    images: Sequence[Decoded], samples: np.ndarray, size: int, resized: int
) -> list[list[Decoded]]:
    """One view: S x S central crops of images resized bilinearly, as torchvision does it.

    The shorter side is first resized to ``resized`` pixels. The crops do not depend on ``samples``.
    """
    from torchvision.transforms.v2.functional import center_crop

    sides = [with_shorter_side(*_height_and_width(image), resized) for image in images]
    whole = [_resized(image, *side) for image, side in zip(images, sides, strict=True)]
    return [[center_crop(image, [size, size]) for image in whole]]


def stacked(crops: Sequence[Decoded]) -> Tensor:
    """Crops, all of Pillow or all tensors, as one tensor (B, 3, S, S) uint8."""
    if tensors := [crop for crop in crops if isinstance(crop, Tensor)]:
        return torch.stack(tensors)
    pixels = torch.from_numpy(np.stack([np.asarray(crop) for crop in crops]))
    return pixels.permute(0, 3, 1, 2).contiguous()


def with_shorter_side(height: int, width: int, side: int) -> tuple[int, int]:
    """Height and width of an image whose shorter side becomes ``side``, as torchvision rounds."""
    shorter = min(height, width)
    return int(side * height / shorter), int(side * width / shorter)


def _height_and_width(image: Decoded) -> tuple[int, int]:
    if isinstance(image, Tensor):
        return image.shape[1], image.shape[2]
    return image.height, image.width


def _cropped(image: Decoded, left: int, top: int, width: int, height: int) -> Decoded:
    # Filters widen with the scale, so that nothing aliases; with Pillow's resize(box=...) they
    # would reach over the border of the box.
    if isinstance(image, Tensor):
        return image[:, top : top + height, left : left + width]
    return image.crop((left, top, left + width, top + height))


def _resized(image: Decoded, height: int, width: int, *, bicubic: bool = False) -> Decoded:
    if isinstance(image, Tensor):
        # Unlike torchvision's function, which computes in floating point on some CPUs.
        mode = "bicubic" if bicubic else "bilinear"
        return interpolate(image[None], (height, width), mode=mode, antialias=True)[0]
    filter_ = Image.Resampling.BICUBIC if bicubic else Image.Resampling.BILINEAR
    return image.resize((width, height), filter_)
