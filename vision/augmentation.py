"""Augmentation of image batches on the device that holds them, one set of parameters per image.

Shapes: B images of a batch, 3 channels, H x W pixels, S side of the output, K blur kernel.

The transforms are those of :mod:`shared.pixels`, whose parameters come from a counter-based
generator on the host: what happens to a sample is a pure function of (seed, epoch, sample, view),
whatever the batch, the device and the number of processes. The rounding to 8 bits between two
transforms, part of a pipeline of PIL images, is left out. Crops are bilinear with antialias. Images
that stream from files of many sizes are cropped by their loader, with the boxes of
:func:`parameters`; the rest of their policy is ``dataclasses.replace(policy, scale=None)``.
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from shared.pixels import (
    CROP_DRAWS,
    colour_jitter,
    crop_boxes,
    flip,
    gaussian_blur,
    grayscale,
    jitter_factors,
    jitters,
    normalise,
    replace,
    resized_crop,
    send,
    solarize,
    uniforms,
)
from vision.images import in_channels, pixels_of


@dataclass(frozen=True)
class Policy:
    """What may happen to an image: crop, flip, colour jitter, grayscale, blur, solarisation.

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
        reflected: whether the blur sees the mirror image beyond a border, else black.
        solarize: probability that bright values are inverted.
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
    reflected: bool = True
    solarize: float = 0.0
    bicubic: bool = False

    def __post_init__(self) -> None:
        if self.scale is not None and not 0 < self.scale[0] <= self.scale[1] <= 1:
            raise ValueError(f"scale must be two rising numbers in (0, 1], got {self.scale}")
        for name, interval in (("ratio", self.ratio), ("sigma", self.sigma)):
            if not 0 < interval[0] <= interval[1]:
                raise ValueError(f"{name} must be two rising numbers above 0, got {interval}")
        for name in ("flip", "jitter_probability", "grayscale", "blur", "solarize"):
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
_MOCO_V3 = dataclasses.replace(
    _SIMCLR, scale=(0.2, 1.0), jitter=(0.4, 0.4, 0.2, 0.1), blur=1.0, kernel=13
)

POLICIES: dict[str, Policy] = {
    # utils.py of the HCL program, which LMCL, CLLR and MMCL (CIFAR and STL-10) build on
    "hcl": dataclasses.replace(_SIMCLR, jitter=_HALF_JITTER, kernel=3),
    # The ReSSL program, small data sets. Its blur is PIL's: three box blurs, which at the largest
    # sigma (2) reach 6 pixels to each side; 13 pixels reach as far.
    "ressl_strong": dataclasses.replace(_SIMCLR, scale=(0.2, 1.0), jitter=_HALF_JITTER, kernel=13),
    "ressl_weak": Policy(scale=(0.2, 1.0), flip=0.5),
    "simclr": _SIMCLR,
    # MMCL's ImageNet program: SimCLR's, kernel included (22 at 224 px, an even number: 23), with
    # a blur of its own (utils/datautils.py)
    "mmcl_imagenet": dataclasses.replace(_SIMCLR, bicubic=True, sigma=(0.2, 2.0), reflected=False),
    # main_moco.py of MoCo v3's program with the crops of its ResNet-50 (CONFIG.md): BYOL's two
    # policies. Its blur is PIL's; at the largest sigma it reaches as far as 13 pixels.
    "moco_v3_first": _MOCO_V3,
    "moco_v3_second": dataclasses.replace(_MOCO_V3, blur=0.1, solarize=0.2),
    # train_moco_ins.py of the CMC program, behind the ImageNet-100 tables of LMCL and CLLR; the
    # first MoCo's program has the same
    "cmc": Policy(
        scale=(0.2, 1.0),
        flip=0.5,
        jitter=(0.4, 0.4, 0.4, 0.4),
        jitter_probability=1.0,
        grayscale=0.2,
        grayscale_first=True,
    ),
    # transform of SwAV's program, its large and its small crops; its blur is PIL's
    "swav": dataclasses.replace(_SIMCLR, scale=(0.14, 1.0), kernel=13),
    "swav_small": dataclasses.replace(_SIMCLR, scale=(0.05, 0.14), kernel=13),
    # linear probes: the ReSSL and MMCL programs train theirs so
    "crop_flip": Policy(scale=(0.08, 1.0), flip=0.5),
    # finetune.py of the transfer suite's program (Ericsson et al. 2021)
    "crop_flip_bicubic": Policy(scale=(0.08, 1.0), flip=0.5, bicubic=True),
    "plain": Policy(),
}


@dataclass(frozen=True)
class Parameters:
    """What happens to each of B images."""

    top: np.ndarray  # (B,) int64, first row of the crop, as are left, height and width
    left: np.ndarray
    height: np.ndarray
    width: np.ndarray
    flip: np.ndarray  # (B,) bool, as are jitter, grayscale, blur and solarize: whether it happens
    jitter: np.ndarray
    factors: np.ndarray  # (B, 4) float64, of brightness, contrast, saturation and hue
    order: np.ndarray  # (B, 4) int64; order[:, 0] is the column of factors that comes first
    grayscale: np.ndarray
    blur: np.ndarray
    sigma: np.ndarray  # (B,) float64, in pixels
    solarize: np.ndarray


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

    Without a crop in the policy, an image of another side than S is resized as a whole. The work is
    done on the device of the pixels.

    pixels: (B, 3, H, W) or (B, 1, H, W) as :func:`vision.images.pixels_of` takes them. samples:
    (B,) number of each image in its dataset. mean, std: per channel, on the scale from 0 to 1.
    """
    pixels = in_channels(pixels_of(pixels), 3)
    if len(samples) != len(pixels):
        raise ValueError(f"{len(pixels)} images but {len(samples)} samples")
    height, width = pixels.shape[-2:]
    drawn = parameters(policy, seed, epoch, samples, view, height, width)

    jitter = jitters(drawn.jitter, drawn.factors, drawn.order)
    names = ("flip", "grayscale", "blur", "solarize")
    sent = send(
        {
            "box": np.stack([drawn.top, drawn.left, drawn.height, drawn.width]),
            "sigma": drawn.sigma,
            "colours": jitter.numbers,
        },
        {"jitter": jitter.index, **{name: getattr(drawn, name) for name in names}},
        pixels.device,
    )
    with torch.autocast(pixels.device.type, enabled=False):  # pixels need more than 8 bits
        images = pixels.float().mul_(1 / 255)
        if policy.scale is not None or (height, width) != (size, size):
            top, left, box_height, box_width = sent["box"].unbind()
            images = resized_crop(images, top, left, box_height, box_width, size)
        replace(images, sent["flip"], flip)
        if policy.grayscale_first:
            replace(images, sent["grayscale"], grayscale)
        colour_jitter(images, sent["jitter"], sent["colours"], jitter.before)
        if not policy.grayscale_first:
            replace(images, sent["grayscale"], grayscale)
        kernel = policy.kernel or _tenth(size)
        blur = partial(gaussian_blur, kernel=kernel, reflected=policy.reflected)
        replace(images, sent["blur"], blur, sent["sigma"])
        replace(images, sent["solarize"], solarize)
    return normalise(images, mean, std)


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

    samples: (B,) number of each image in its dataset. height, width: H and W, or those of each
    image (B,).
    """
    draws = uniforms(seed, epoch, samples, view, CROP_DRAWS + 14)
    crop, draws = np.split(draws, [CROP_DRAWS], axis=1)
    if policy.scale is None:
        sides = (
            np.broadcast_to(np.asarray(side, np.int64), len(draws)) for side in (height, width)
        )
        top = left = np.zeros(len(draws), np.int64)
        box_height, box_width = sides
    else:
        top, left, box_height, box_width = crop_boxes(
            crop, height, width, area=policy.scale, aspect=policy.ratio
        )
    return Parameters(
        top=top,
        left=left,
        height=box_height,
        width=box_width,
        flip=draws[:, 0] < policy.flip,
        jitter=draws[:, 1] < policy.jitter_probability,
        factors=jitter_factors(draws[:, 2:6], policy.jitter),
        order=draws[:, 6:10].argsort(axis=1),
        grayscale=draws[:, 10] < policy.grayscale,
        blur=draws[:, 11] < policy.blur,
        sigma=policy.sigma[0] + draws[:, 12] * (policy.sigma[1] - policy.sigma[0]),
        solarize=draws[:, 13] < policy.solarize,
    )


def _tenth(size: int) -> int:
    """The odd kernel of SimCLR's program: 3 at 32 pixels, 23 at 224."""
    return 2 * (size // 20) + 1
