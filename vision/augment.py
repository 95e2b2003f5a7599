"""Augmentation of image batches on the device that holds them, one set of parameters per image.

Shapes: B images of a batch, C channels = 3, H x W pixels, S side of the output, K blur kernel.

The parameters come from a counter-based generator on the host: what happens to a sample is a pure
function of (seed, epoch, sample, view), whatever the batch, the device and the number of processes.
Because the host knows which image needs which transform, each transform runs over just these
images and the device is never waited for.

The transforms are those of torchvision.transforms.v2.functional on float tensors in [0, 1]; the
rounding to 8 bits between two transforms, part of a pipeline of PIL images, is left out. Crops are
bilinear with antialias. Images that stream from files of many sizes are cropped by their loader,
with the boxes of :func:`parameters`; the rest
of their policy is ``dataclasses.replace(policy, scale=None)``.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class Policy:
    """What may happen to an image: crop, flip, colour jitter, grayscale, blur, in this order.

    Attributes:
        scale: area of the crop as a share of the image, from and to; None: the whole image.
        ratio: width over height of the crop, from and to.
        flip: probability of a horizontal flip.
        jitter: strengths of brightness, contrast, saturation (factors from ``max(0, 1 - strength)``
            to ``1 + strength``) and hue (shift by up to that share of the colour circle).
        jitter_probability: probability of the colour jitter, its four operations in random order.
        grayscale: probability of losing colour.
        grayscale_first: whether this comes before the colour jitter.
        blur: probability of a Gaussian blur.
        sigma: standard deviation of the blur in pixels, from and to.
        kernel: odd width of the blur in pixels; None: about a tenth of the output's side, as
            SimCLR's program rounds it.
        bicubic: whether crops of images that stream from files are resized bicubically; those of
            images in memory are resized bilinearly.

    Raises:
        ValueError: a number outside its range.
    """

    scale: tuple[float, float] | None = None
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    flip: float = 0.0
    jitter: tuple[float, float, float, float] = (0.0, 0.0, 0.0, 0.0)
    jitter_probability: float = 0.0
    grayscale: float = 0.0
    grayscale_first: bool = False
    blur: float = 0.0
    sigma: tuple[float, float] = (0.1, 2.0)
    kernel: int | None = None
    bicubic: bool = False

    def __post_init__(self) -> None:
        if self.scale is not None and not 0 < self.scale[0] <= self.scale[1] <= 1:
            raise ValueError(f"scale must be two rising numbers in (0, 1], got {self.scale}")
        for name, interval in (("ratio", self.ratio), ("sigma", self.sigma)):
            if not 0 < interval[0] <= interval[1]:
                raise ValueError(f"{name} must be two rising numbers above 0, got {interval}")
        for name in ("flip", "jitter_probability", "grayscale", "blur"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} must lie in [0, 1], got {getattr(self, name)}")
        if min(self.jitter) < 0 or self.jitter[3] > 0.5:
            raise ValueError(f"jitter must be 4 numbers >= 0, hue at most 0.5, got {self.jitter}")
        if self.kernel is not None and (self.kernel < 1 or self.kernel % 2 == 0):
            raise ValueError(f"kernel must be an odd number of pixels, got {self.kernel}")


_HALF_JITTER = (0.4, 0.4, 0.4, 0.1)
# Chen et al. 2020, "A Simple Framework for Contrastive Learning", appendix A, at strength 1
_SIMCLR = Policy(
    scale=(0.08, 1.0),
    flip=0.5,
    jitter=(0.8, 0.8, 0.8, 0.2),
    jitter_probability=0.8,
    grayscale=0.2,
    blur=0.5,
)

POLICIES: dict[str, Policy] = {
    # utils.py of the HCL program, which LMCL, CLLR and MMCL (CIFAR and STL-10) build on
    "hcl": Policy(
        scale=(0.08, 1.0),
        flip=0.5,
        jitter=_HALF_JITTER,
        jitter_probability=0.8,
        grayscale=0.2,
        blur=0.5,
        kernel=3,
    ),
    # The ReSSL program, small data sets. Its blur is PIL's: three box blurs, which at the largest
    # sigma (2) reach 6 pixels to each side; 13 pixels reach as far.
    "ressl_strong": Policy(
        scale=(0.2, 1.0),
        flip=0.5,
        jitter=_HALF_JITTER,
        jitter_probability=0.8,
        grayscale=0.2,
        blur=0.5,
        kernel=13,
    ),
    "ressl_weak": Policy(scale=(0.2, 1.0), flip=0.5),
    "simclr": _SIMCLR,
    # MMCL's ImageNet program: SimCLR's, kernel included (22 at 224 px, an even number: 23)
    "mmcl_imagenet": dataclasses.replace(_SIMCLR, bicubic=True),
    # train_moco_ins.py of the CMC program, behind the ImageNet-100 tables of LMCL and CLLR
    "cmc": Policy(
        scale=(0.2, 1.0),
        flip=0.5,
        jitter=(0.4, 0.4, 0.4, 0.4),
        jitter_probability=1.0,
        grayscale=0.2,
        grayscale_first=True,
    ),
    # linear probes: the ReSSL and MMCL programs train theirs so
    "crop_flip": Policy(scale=(0.08, 1.0), flip=0.5),
    "plain": Policy(),
}


@dataclass(frozen=True)
class Parameters:
    """What happens to each of B images.

    Attributes:
        top: (B,) int64, first row of the crop; ``left``, ``height`` and ``width`` accordingly.
        left: (B,) int64.
        height: (B,) int64.
        width: (B,) int64.
        flip: (B,) bool.
        jitter: (B,) bool, whether the colour jitter takes place.
        factors: (B, 4) float64, of brightness, contrast, saturation and hue.
        order: (B, 4) int64, ``order[:, 0]`` is the column of ``factors`` that comes first.
        grayscale: (B,) bool.
        blur: (B,) bool.
        sigma: (B,) float64, in pixels.
    """

    top: np.ndarray
    left: np.ndarray
    height: np.ndarray
    width: np.ndarray
    flip: np.ndarray
    jitter: np.ndarray
    factors: np.ndarray
    order: np.ndarray
    grayscale: np.ndarray
    blur: np.ndarray
    sigma: np.ndarray


_ATTEMPTS = 10  # at a crop, before torchvision resorts to the centre
_CROP_DRAWS = 2 * _ATTEMPTS + 2
_DRAWS = _CROP_DRAWS + 13


def augment(
    pixels: Tensor,
    policy: Policy,
    size: int,
    *,
    seed: int,
    epoch: int,
    samples: np.ndarray,
    view: int,
    mean: Sequence[float],
    std: Sequence[float],
) -> Tensor:
    """The view (B, 3, S, S) float32 of each image under ``policy``, normalised.

    Args:
        pixels: (B, 3, H, W) uint8, on the device that is to do the work.
        policy: what may happen; without a crop, an image of another side is resized as a whole.
        size: S.
        seed: seed of the run.
        epoch: number of the epoch.
        samples: (B,) number of each image in its dataset.
        view: number of the view.
        mean: per channel, subtracted last, on the scale from 0 to 1.
        std: per channel, divided by last.

    Raises:
        ValueError: pixels of another type or shape, samples of another length, or an image that
            is too small for the kernel of the blur.
    """
    if pixels.dtype != torch.uint8 or pixels.dim() != 4 or pixels.size(1) != 3:
        raise ValueError(f"pixels must be (B, 3, H, W) uint8, got {_describe(pixels)}")
    if len(samples) != len(pixels):
        raise ValueError(f"{len(pixels)} images but {len(samples)} samples")
    height, width = pixels.shape[-2:]
    drawn = parameters(policy, seed, epoch, samples, view, height, width)

    numbers, chosen = _send(drawn, pixels.device)
    top, left, box_height, box_width, *factors, sigma = numbers
    flipped, grayed, blurred, *jittered = chosen
    with torch.autocast(pixels.device.type, enabled=False):  # pixels need more than 8 bits
        images = pixels.float().mul_(1 / 255)
        if policy.scale is not None or (height, width) != (size, size):
            images = resized_crop(images, top, left, box_height, box_width, size)
        _replace(images, flipped, flip)
        if policy.grayscale_first:
            _replace(images, grayed, grayscale)
        for turn in range(4):
            for operation, factor, index in zip(
                _JITTER, factors, jittered[4 * turn : 4 * turn + 4], strict=True
            ):
                _replace(images, index, operation, factor)
        if not policy.grayscale_first:
            _replace(images, grayed, grayscale)
        blur = partial(gaussian_blur, kernel=policy.kernel or _tenth(size))
        _replace(images, blurred, blur, sigma)
    for channel, (center, deviation) in enumerate(zip(mean, std, strict=True)):
        images[:, channel].sub_(center).div_(deviation)
    return images


def parameters(
    policy: Policy,
    seed: int,
    epoch: int,
    samples: np.ndarray,
    view: int,
    height: int | np.ndarray,
    width: int | np.ndarray,
) -> Parameters:
    """What ``policy`` does to each sample: a pure function of (seed, epoch, sample, view).

    The crop follows torchvision's RandomResizedCrop: ten attempts at an area and the logarithm of
    a ratio, then the largest central box of an allowed ratio.

    Args:
        policy: what may happen.
        seed: seed of the run.
        epoch: number of the epoch.
        samples: (B,) number of each image in its dataset.
        view: number of the view.
        height: H, or that of each image (B,).
        width: W, or that of each image (B,).
    """
    draws = uniforms(seed, epoch, samples, view, _DRAWS)
    height, width = (
        np.broadcast_to(np.asarray(side, np.int64), len(draws)) for side in (height, width)
    )
    crop, draws = np.split(draws, [_CROP_DRAWS], axis=1)
    top, left, box_height, box_width = _boxes(policy, crop, height, width)
    low = [*(max(0, 1 - strength) for strength in policy.jitter[:3]), -policy.jitter[3]]
    high = [*(1 + strength for strength in policy.jitter[:3]), policy.jitter[3]]
    return Parameters(
        top=top,
        left=left,
        height=box_height,
        width=box_width,
        flip=draws[:, 0] < policy.flip,
        jitter=draws[:, 1] < policy.jitter_probability,
        factors=low + draws[:, 2:6] * np.subtract(high, low),
        order=draws[:, 6:10].argsort(axis=1),
        grayscale=draws[:, 10] < policy.grayscale,
        blur=draws[:, 11] < policy.blur,
        sigma=policy.sigma[0] + draws[:, 12] * (policy.sigma[1] - policy.sigma[0]),
    )


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


def resized_crop(
    images: Tensor, top: Tensor, left: Tensor, height: Tensor, width: Tensor, size: int
) -> Tensor:
    """Boxes of (B, C, H, W) images, resized to (B, C, S, S), bilinear with antialias.

    top, left, height, width: (B,), in pixels.
    """
    rows = _resize_weights(top, height, images.size(2), size)
    columns = _resize_weights(left, width, images.size(3), size)
    return _filter(images, rows, columns)


def flip(images: Tensor) -> Tensor:
    """Images (B, C, H, W) with left and right exchanged."""
    return images.flip(-1)


def brightness(images: Tensor, factor: Tensor) -> Tensor:
    """Images (B, 3, H, W) times their factor (B,)."""
    return (images * _per_image(factor)).clamp_(0, 1)


def contrast(images: Tensor, factor: Tensor) -> Tensor:
    """Images (B, 3, H, W) moved away from their mean gray by their factor (B,)."""
    return _blend(images, _luma(images).mean((1, 2, 3), keepdim=True), factor)


def saturation(images: Tensor, factor: Tensor) -> Tensor:
    """Images (B, 3, H, W) moved away from their gray version by their factor (B,)."""
    return _blend(images, _luma(images), factor)


def hue(images: Tensor, factor: Tensor) -> Tensor:
    """Images (B, 3, H, W) with colours turned by their factor (B,), in turns of the HSV circle."""
    red, green, blue = images.unbind(1)
    high = red.maximum(green).maximum(blue)
    chroma = high - red.minimum(green).minimum(blue)
    # Gray has no hue: its numerators are 0, and so is the chroma that its hue goes with.
    divisor = chroma.clamp(min=torch.finfo(chroma.dtype).tiny)
    angle = torch.where(
        high == red,
        (green - blue) / divisor,
        torch.where(high == green, (blue - red) / divisor + 2, (red - green) / divisor + 4),
    )
    angle += 6 * factor[:, None, None]
    # Each channel falls from full to none and rises again on its own third of the circle.
    offset = 5 - 2 * torch.arange(3, device=images.device, dtype=images.dtype)[:, None, None]
    lack = (angle.unsqueeze(1) + offset).remainder_(6).sub_(2).abs_().neg_().add_(2).clamp_(0, 1)
    return high.unsqueeze(1) - lack.mul_(chroma.unsqueeze(1))


def grayscale(images: Tensor) -> Tensor:
    """Images (B, 3, H, W) with their luma in all three channels."""
    return _luma(images).expand_as(images)


def gaussian_blur(images: Tensor, sigma: Tensor, kernel: int) -> Tensor:
    """Images (B, C, H, W) blurred by their sigma (B,) in pixels, borders reflected.

    Raises:
        ValueError: an image that ends before the kernel does.
    """
    if kernel // 2 >= min(images.shape[-2:]):
        height, width = images.shape[-2:]
        raise ValueError(f"{height} x {width} pixels are too few for a blur of {kernel}")
    offset = torch.arange(kernel, device=images.device) - kernel // 2
    taps = torch.softmax(-(offset**2) / (2 * sigma[:, None] ** 2), dim=1)
    rows, columns = (_reflected(taps, offset, side) for side in images.shape[-2:])
    return _filter(images, rows, columns)


_JITTER = (brightness, contrast, saturation, hue)  # as the columns of Parameters.factors

_STEP = np.uint64(0x9E3779B97F4A7C15)


def _mix(words: np.ndarray) -> np.ndarray:
    """The finaliser of SplitMix64: every bit of a word changes about half of the bits."""
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    words ^= words >> np.uint64(31)
    return words


def _boxes(
    policy: Policy, draws: np.ndarray, height: np.ndarray, width: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Top, left, height, width, each (B,) int64, of the crops of images of ``height``, ``width``.

    draws: (B, 22), of the areas of all attempts, of their ratios, of the row and of the column.
    """
    if policy.scale is None:
        nothing = np.zeros(len(height), np.int64)
        return nothing, nothing, height, width
    (smallest, largest), (narrow, wide) = policy.scale, policy.ratio
    areas, ratios, places = np.split(draws, [_ATTEMPTS, 2 * _ATTEMPTS], axis=1)
    areas = (height * width)[:, None] * (smallest + areas * (largest - smallest))
    ratios = np.exp(math.log(narrow) + ratios * (math.log(wide) - math.log(narrow)))
    heights, widths = np.rint(np.sqrt(areas / ratios)), np.rint(np.sqrt(areas * ratios))
    fits = (heights > 0) & (heights <= height[:, None]) & (widths > 0) & (widths <= width[:, None])

    found, first = fits.any(1), (np.arange(len(fits)), fits.argmax(1))
    tallest = np.rint(np.minimum(height, width / narrow))
    widest = np.rint(np.minimum(width, height * wide))
    box_height = np.where(found, heights[first], tallest).astype(np.int64)
    box_width = np.where(found, widths[first], widest).astype(np.int64)
    top, left = (
        np.where(found, place * (room + 1), room // 2).astype(np.int64)
        for place, room in zip(places.T, (height - box_height, width - box_width), strict=True)
    )
    return top, left, box_height, box_width


def _send(drawn: Parameters, device: torch.device) -> tuple[list[Tensor], list[Tensor]]:
    """What :func:`augment` needs of the parameters on the device, by one copy that nobody awaits.

    First come the numbers, each (B,) float32: top, left, height, width, the four factors, sigma.
    Then come the numbers of the images, int64, to flip, to gray, to blur, and those whose turn at
    each of the four operations of the jitter it is, the four of the first turn first.
    """
    rows = (drawn.top, drawn.left, drawn.height, drawn.width, *drawn.factors.T, drawn.sigma)
    numbers = np.stack(rows).astype(np.float32)
    jittered = [
        drawn.jitter & (drawn.order[:, turn] == operation)
        for turn in range(4)
        for operation in range(4)
    ]
    masks = (drawn.flip, drawn.grayscale, drawn.blur, *jittered)
    chosen = [np.flatnonzero(mask).astype(np.int32) for mask in masks]
    words = torch.from_numpy(np.concatenate((numbers.view(np.int32).ravel(), *chosen)))
    if device.type == "cuda":
        words = words.pin_memory()
    words = words.to(device, non_blocking=True)
    values, indices = words.split((numbers.size, len(words) - numbers.size))
    values = values.view(torch.float32).view(numbers.shape)
    return list(values), list(indices.long().split([len(index) for index in chosen]))


def _replace(
    images: Tensor, index: Tensor, transform: Callable[..., Tensor], *numbers: Tensor
) -> None:
    """Transform in place the images at ``index``, by their own of the ``numbers`` (B,)."""
    if len(index):
        some = transform(images.index_select(0, index), *(number[index] for number in numbers))
        images.index_copy_(0, index, some)


def _resize_weights(start: Tensor, length: Tensor, side: int, size: int) -> Tensor:
    """Weights (B, size, side) of each pixel's row or column in those of the resized box.

    A triangle as wide as two pixels of the coarser of the two grids, cut off at the box.
    """
    start, length = start[:, None, None], length[:, None, None]
    scale = length / size
    center = scale * (torch.arange(size, device=start.device)[:, None] + 0.5)
    position = torch.arange(side, device=start.device) + 0.5 - start
    weights = (1 - (position - center).abs_().div_(scale.clamp(min=1))).clamp_(min=0)
    weights *= (position > 0) & (position < length)
    return weights.div_(weights.sum(2, keepdim=True))


def _reflected(taps: Tensor, offset: Tensor, side: int) -> Tensor:
    """Taps (B, K) at their offsets (K,) as matrices (B, side, side), reflected at the borders."""
    here = torch.arange(side, device=taps.device)
    source = (here + offset[:, None]).abs()
    source = side - 1 - (side - 1 - source).abs()
    reads = (source.unsqueeze(2) == here).to(taps.dtype)
    return torch.mm(taps, reads.flatten(1)).view(-1, side, side)


def _filter(images: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Images (B, C, H, W) under matrices (B, S, H) of their rows and (B, S', W) of their columns.

    One sum for each direction, as the filters of images are separable.
    """
    batch, channels, height, width = images.shape
    images = torch.bmm(images.reshape(batch, channels * height, width), columns.mT)
    return torch.matmul(rows.unsqueeze(1), images.view(batch, channels, height, -1))


def _blend(images: Tensor, base: Tensor, factor: Tensor) -> Tensor:
    """``factor * images + (1 - factor) * base``, within [0, 1]."""
    factor = _per_image(factor)
    return (images * factor).add_((1 - factor) * base).clamp_(0, 1)


def _luma(images: Tensor) -> Tensor:
    """Brightness (B, 1, H, W) of images (B, 3, H, W), with the weights of ITU-R BT.601."""
    red, green, blue = images.chunk(3, dim=1)
    return (red * 0.2989).add_(green, alpha=0.587).add_(blue, alpha=0.114)


def _per_image(number: Tensor) -> Tensor:
    """Numbers (B,) as (B, 1, 1, 1)."""
    return number[:, None, None, None]


def _tenth(size: int) -> int:
    """The odd kernel of SimCLR's program: 3 at 32 pixels, 23 at 224."""
    return 2 * (size // 20) + 1


def _describe(pixels: Tensor) -> str:
    return f"{tuple(pixels.shape)} {str(pixels.dtype).removeprefix('torch.')}"
