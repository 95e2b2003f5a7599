"""Operations on pixels, for images and clips alike, on the device that holds them.

Shapes: B images or clips of a batch, ... nothing or T frames, H x W pixels, S side of the output,
K taps of a blur. What is done to a clip is done to all of its frames.

Images are float in [0, 1] and have three channels (B, 3, ..., H, W) unless said otherwise; each has
numbers of its own. The numbers are drawn on the host by :func:`uniforms`, which therefore knows
which image needs which transform: :func:`replace` runs a transform over just these, without waiting
for the device. The transforms are those of torchvision.transforms.v2.functional on float
tensors. Needs torch and numpy only.
"""

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

# What is drawn


def uniforms(seed: int, epoch: int, samples: np.ndarray, view: int, count: int) -> np.ndarray:
    """Draws (B, count) float64 from [0, 1): row b is a function of (seed, epoch, samples[b], view).

    Each row is a stream of SplitMix64 (Steele et al. 2014, "Fast Splittable Pseudorandom Number
    Generators"), started at a hash of these four.
    """
    state = np.zeros(1, np.uint64)
    for part in (seed, epoch, view, samples):
        state = _mix(state + _STEP + np.asarray(part, np.int64).astype(np.uint64))
    steps = np.arange(1, count + 1, dtype=np.uint64) * _STEP
    words = _mix(state[:, None] + steps)
    return (words >> np.uint64(11)).astype(np.float64) * 2.0**-53


_STEP = np.uint64(0x9E3779B97F4A7C15)


def _mix(words: np.ndarray) -> np.ndarray:
    """The finaliser of SplitMix64: every bit of a word changes about half of the bits."""
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    words ^= words >> np.uint64(31)
    return words


_ATTEMPTS = 10  # at a crop, before torchvision resorts to the centre
CROP_DRAWS = 2 * _ATTEMPTS + 2


def crop_boxes(
    draws: np.ndarray,
    height: int | np.ndarray,
    width: int | np.ndarray,
    *,
    area: tuple[float, float],
    aspect: tuple[float, float],
) -> np.ndarray:
    """Top, left, height and width (4, B) int64 of crops, by the rules of RandomResizedCrop.

    Ten attempts at an area and the logarithm of an aspect, then the largest central box of an
    allowed aspect, as torchvision does it.

    draws: (B, CROP_DRAWS), of the areas of all attempts, of their aspects, of row and column.
    height, width: H and W, or those of each image (B,). area: of the crop as a share of the image,
    from and to. aspect: width over height of the crop, from and to.
    """
    height, width = (
        np.broadcast_to(np.asarray(side, np.int64), len(draws)) for side in (height, width)
    )
    (smallest, largest), (narrow, wide) = area, aspect
    areas, aspects, places = np.split(draws, [_ATTEMPTS, 2 * _ATTEMPTS], axis=1)
    areas = (height * width)[:, None] * (smallest + areas * (largest - smallest))
    aspects = np.exp(math.log(narrow) + aspects * (math.log(wide) - math.log(narrow)))
    heights, widths = np.rint(np.sqrt(areas / aspects)), np.rint(np.sqrt(areas * aspects))
    fits = (heights > 0) & (heights <= height[:, None]) & (widths > 0) & (widths <= width[:, None])

    fitting, first = fits.any(1), (np.arange(len(fits)), fits.argmax(1))
    tallest = np.rint(np.minimum(height, width / narrow))
    widest = np.rint(np.minimum(width, height * wide))
    box_height = np.where(fitting, heights[first], tallest)
    box_width = np.where(fitting, widths[first], widest)
    top, left = (
        np.where(fitting, np.floor(position * (room + 1)), room // 2)
        for position, room in zip(places.T, (height - box_height, width - box_width), strict=True)
    )
    return np.stack((top, left, box_height, box_width)).astype(np.int64)


def jitter_factors(draws: np.ndarray, strengths: Sequence[float]) -> np.ndarray:
    """Factors (B, 4) of brightness, contrast, saturation, and turns of hue, of draws (B, 4).

    strengths: of each; the first three lie within ``1 - strength``, at least 0, and
    ``1 + strength``, the turn of hue within its strength to either side.
    """
    low = [*(max(0, 1 - strength) for strength in strengths[:3]), -strengths[3]]
    high = [*(1 + strength for strength in strengths[:3]), strengths[3]]
    return np.asarray(low + draws * np.subtract(high, low))


BLENDS = 3  # operations of a colour jitter beside its hue: brightness, contrast, saturation


@dataclass(frozen=True)
class Jitter:
    """The colour jitters of B images, laid out so that few operators carry them all out.

    Every jitter turns the hue once. What comes before and after it is a blend with a base: with
    black (brightness), the mean gray (contrast) or the gray image (saturation).
    """

    # (n,) int64, the images that are jittered; those with most blends before their hue come first,
    # so that each turn is of the first or of the last of them.
    index: np.ndarray
    # (19, B) float64: of the three blends before the hue and the three after it each image's
    # factor, what its base is multiplied by, and 1 where its base is the mean gray; and its turn of
    # the hue.
    numbers: np.ndarray
    # How many images have a first, a second and a third blend before their hue.
    before: tuple[int, ...]


def jitters(jitter: np.ndarray, factors: np.ndarray, order: np.ndarray) -> Jitter:
    """What :func:`colour_jitter` needs to know.

    jitter: (B,) bool, whether the jitter takes place at all. factors: (B, 4), of brightness,
    contrast, saturation and hue. order: (B, 4), ``order[:, 0]`` is the operation that comes first.
    """
    image = np.arange(len(order))
    before = (order == BLENDS).argmax(axis=1)
    factors = factors.astype(np.float32)
    rows = []
    for turn in range(2 * BLENDS):
        step = turn if turn < BLENDS else before + 1 + turn - BLENDS
        # Where there is no such turn, the numbers are not used.
        operation = order[image, np.minimum(step, BLENDS)]
        factor = factors[image, operation]
        # In single precision, as the device would take the difference.
        share = np.where(operation == 0, np.float32(0), np.float32(1) - factor)
        rows += [factor, share, operation == 1]
    index = np.flatnonzero(jitter)
    index = index[np.argsort(-before[index], kind="stable")]
    counts = tuple(int((before[index] > turn).sum()) for turn in range(BLENDS))
    return Jitter(index, np.stack([*rows, factors[:, BLENDS]]).astype(np.float64), counts)


# In memory and on the device


def mapped_pixels(file: Path, shape: tuple[int, ...] | None = None) -> Tensor:
    """The bytes of a file, memory-mapped and not to be written to, in this shape or flat."""
    # Not mode "c": private pages count as memory that may be needed, 215 GB of it for UCF-101.
    pixels = np.memmap(file, np.uint8, mode="r", shape=shape)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # torch has no tensors that are read only
        return torch.from_numpy(pixels)


def to_device(numbers: Tensor, device: torch.device) -> Tensor:
    """Numbers of the host or the device on ``device``, by a copy that does not block."""
    if device.type == "cuda" and numbers.device.type == "cpu":
        return numbers.pin_memory().to(device, non_blocking=True)
    return numbers.to(device)


def send(
    numbers: Mapping[str, np.ndarray], chosen: Mapping[str, np.ndarray], device: torch.device
) -> dict[str, Tensor]:
    """Both by name on the device, by one copy: numbers as float32, and indices.

    chosen: masks (B,) bool, of which the indices are sent, or indices.
    """
    arrays = [array.astype(np.float32) for array in numbers.values()]
    indices = [
        np.flatnonzero(selection) if selection.dtype == bool else selection
        for selection in chosen.values()
    ]
    flat = np.concatenate(
        [
            *(array.ravel().view(np.int32) for array in arrays),
            *(index.astype(np.int32) for index in indices),
        ]
    )
    size = sum(array.size for array in arrays)
    values, places = to_device(torch.from_numpy(flat), device).split([size, len(flat) - size])
    parts = values.view(torch.float32).split([array.size for array in arrays])
    shaped = (part.view(array.shape) for part, array in zip(parts, arrays, strict=True))
    found = places.long().split([len(index) for index in indices])
    return dict(zip((*numbers, *chosen), (*shaped, *found), strict=True))


# What is done


def replace(
    images: Tensor, index: Tensor, transform: Callable[..., Tensor], *numbers: Tensor
) -> None:
    """Transform in place the images at ``index``, by their own of the ``numbers`` (B,)."""
    if len(index):
        changed = transform(images.index_select(0, index), *(number[index] for number in numbers))
        images.index_copy_(0, index, changed)


def triangle(far: Tensor) -> Tensor:
    """Bilinear interpolation: the weight of a pixel at a distance in pixels of the coarser grid."""
    return (1 - far).clamp_(min=0)


def cubic(far: Tensor) -> Tensor:
    """Bicubic interpolation, likewise: Keys' cubic with a = -1/2."""
    near = ((1.5 * far - 2.5) * far * far).add_(1)
    tail = (((2.5 - 0.5 * far) * far - 4) * far).add_(2)
    return torch.where(far < 1, near, torch.where(far < 2, tail, 0.0))


def resized_crop(
    images: Tensor,
    top: Tensor,
    left: Tensor,
    height: Tensor,
    width: Tensor,
    size: int,
    weight: Callable[[Tensor], Tensor] = triangle,
) -> Tensor:
    """Boxes of (B, C, ..., H, W) images, resized to (B, C, ..., S, S), with antialias.

    Like torchvision's resizing of a cropped box: pixels outside the box have no influence.

    top, left, height, width: (B,), in pixels. weight: :func:`triangle`, or :func:`cubic`, which can
    leave [0, 1].
    """
    rows = _resize_weights(top, height, images.size(-2), size, weight)
    columns = _resize_weights(left, width, images.size(-1), size, weight)
    return _filter(images, rows, columns)


def flip(images: Tensor) -> Tensor:
    """Images (B, C, ..., H, W) with left and right exchanged."""
    return images.flip(-1)


def blend(images: Tensor, factor: Tensor, share: Tensor, contrasted: Tensor) -> Tensor:
    """Brightness, contrast or saturation of each image (B, 3, ..., H, W), in place.

    factor: (B,), what the images are multiplied by. share: (B,), what is added of the base: 0 for
    brightness, else ``1 - factor``. contrasted: (B,) bool, whether the base is the mean gray, in
    clips each frame's, or the gray image, as for saturation.
    """
    base = _luma(images)
    mean = base.mean((1, -2, -1), keepdim=True)
    base = torch.where(_per_image(contrasted, images), mean, base)
    images.mul_(_per_image(factor, images)).add_(base.mul_(_per_image(share, images)))
    return images.clamp_(0, 1)


def hue(images: Tensor, factor: Tensor, *, fused: bool = False) -> Tensor:
    """Images with colours turned by their factor (B,), in turns of the HSV circle.

    fused: with the last product and difference rounded once where the processor can, not twice;
    both are kept, because records of images were made with the one and of videos with the other.
    """
    high, low = images.amax(1, keepdim=True), images.amin(1, keepdim=True)
    chroma = high - low
    # Gray has no hue: its numerators are 0, and so is the chroma, by which its hue is multiplied.
    divisor = chroma.clamp(min=torch.finfo(chroma.dtype).tiny)
    red, green, blue = images.split(1, 1)
    angle = torch.where(
        high == red,
        (green - blue) / divisor,
        torch.where(high == green, (blue - red) / divisor + 2, (red - green) / divisor + 4),
    )
    angle += 6 * _per_image(factor, angle)
    # Each channel falls from full to none and rises again on its own third of the circle.
    offset = torch.arange(5, 0, -2, device=images.device, dtype=images.dtype)
    lack = (angle + offset.view(3, *[1] * (images.dim() - 2))).remainder_(6).sub_(2).abs_()
    lack = torch.rsub(lack, 2).clamp_(0, 1)
    if fused:
        return torch.addcmul(high, lack, chroma, value=-1)
    return high - lack.mul_(chroma)


def colour_jitter(
    images: Tensor, index: Tensor, numbers: Tensor, before: Sequence[int], *, fused: bool = False
) -> None:
    """Brightness, contrast, saturation and hue, in place, in each image's own order.

    index, numbers, before: see :class:`Jitter`, the first two on the device of the images. fused:
    see :func:`hue`.
    """
    if not len(index):
        return
    selected, numbers = images.index_select(0, index), numbers.index_select(1, index)
    factors, shares = numbers[:-1:3], numbers[1:-1:3]
    contrasted = numbers[2:-1:3] > 0
    # Images are sorted by their number of blends before the hue. A turn before the hue concerns the
    # first ones, a turn after it all but those without blends left.
    parts = [slice(0, count) for count in before]
    parts += [slice(before[BLENDS - 1 - turn], None) for turn in range(BLENDS)]
    for turn, part in enumerate(parts):
        if turn == BLENDS:
            selected = hue(selected, numbers[-1], fused=fused)
        if len(selected[part]):
            blend(selected[part], factors[turn, part], shares[turn, part], contrasted[turn, part])
    images.index_copy_(0, index, selected)


def grayscale(images: Tensor) -> Tensor:
    """Images with their luma in all three channels."""
    return _luma(images).expand_as(images)


def solarize(images: Tensor) -> Tensor:
    """Images whose bright values, from 128 of 255 on, are inverted."""
    return torch.where(images >= 128 / 255, 1 - images, images)


def gaussian_blur(images: Tensor, sigma: Tensor, kernel: int, *, reflected: bool = True) -> Tensor:
    """Images (B, C, ..., H, W) blurred by their sigma (B,) in pixels.

    kernel: K, odd. reflected: whether what lies beyond a border is its mirror image, else 0.
    """
    if kernel // 2 >= min(images.shape[-2:]):
        height, width = images.shape[-2:]
        raise ValueError(f"{height} x {width} pixels are too few for a blur of {kernel}")
    offset = torch.arange(kernel, device=images.device) - kernel // 2
    taps = torch.softmax(-(offset**2) / (2 * sigma[:, None] ** 2), dim=1)
    rows, columns = (_reads(taps, offset, side, reflected) for side in images.shape[-2:])
    return _filter(images, rows, columns)


def normalise(images: Tensor, mean: Sequence[float], deviation: Sequence[float]) -> Tensor:
    """Images less each channel's mean, divided by its deviation, in place."""
    if not len(mean) == len(deviation) == images.shape[1]:
        raise ValueError(
            f"images have {images.shape[1]} channels, mean {len(mean)} and deviation "
            f"{len(deviation)}; give one of each for every channel"
        )
    if not all(0 <= value <= 1 for value in mean) or not all(0 < value <= 1 for value in deviation):
        raise ValueError(
            f"mean and deviation of colours are on the scale from 0 to 1, deviations above 0; got "
            f"{tuple(mean)} and {tuple(deviation)}"
        )
    for channel, (center, scale) in enumerate(zip(mean, deviation, strict=True)):
        images[:, channel].sub_(center).div_(scale)
    return images


def _resize_weights(
    start: Tensor, length: Tensor, side: int, size: int, weight: Callable[[Tensor], Tensor]
) -> Tensor:
    """Weights (B, size, side) of each pixel's row or column in those of the resized box."""
    start, length = start[:, None, None], length[:, None, None]
    scale = length / size
    center = scale * (torch.arange(size, device=start.device)[:, None] + 0.5)
    position = torch.arange(side, device=start.device) + 0.5 - start
    weights = weight((position - center).abs_().div_(scale.clamp(min=1)))
    weights *= (position > 0) & (position < length)
    return weights.div_(weights.sum(2, keepdim=True))


def _reads(taps: Tensor, offset: Tensor, side: int, reflected: bool) -> Tensor:
    """Taps (B, K) at their offsets (K,) as matrices (B, side, side)."""
    position = torch.arange(side, device=taps.device)
    source = position + offset[:, None]
    if reflected:
        source = side - 1 - (side - 1 - source.abs()).abs()
    reads = (source.unsqueeze(2) == position).to(taps.dtype)
    return torch.mm(taps, reads.flatten(1)).view(-1, side, side)


def _filter(images: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Images (B, ..., H, W) under matrices (B, S, H) of their rows, (B, S', W) of their columns.

    One product for each direction, as the filters of images are separable.
    """
    batch, *between, height, width = images.shape
    images = torch.bmm(images.reshape(batch, -1, width), columns.mT)
    images = torch.matmul(rows[:, None], images.view(batch, -1, height, images.size(-1)))
    return images.view(batch, *between, *images.shape[-2:])


def _luma(images: Tensor) -> Tensor:
    """Brightness (B, 1, ..., H, W), with the weights of ITU-R BT.601."""
    red, green, blue = images.chunk(3, dim=1)
    return (red * 0.2989).add_(green, alpha=0.587).add_(blue, alpha=0.114)


def _per_image(number: Tensor, images: Tensor) -> Tensor:
    """Numbers (B,) as (B, 1, ..., 1), to go with as many dimensions as ``images`` has."""
    return number.view(-1, *[1] * (images.dim() - 1))
