"""Trivial baselines: features without training, to compare a trained encoder with.

Shapes: B images, S side in pixels, n training images, H features.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import adaptive_avg_pool2d, one_hot
from torch.optim.swa_utils import update_bn

from vision.features import device_of, preprocessed
from vision.images import ImageFiles, Images

THUMBNAIL = 8  # side in pixels
LEVELS = 4  # of each colour in the histogram


class Trivial(nn.Module):
    """Trivial features of normalised images: (B, 3, S, S) -> (B, H).

    They are ``"pixels"``: all of them, H = 3 S S; ``"thumbnail"``: means over an 8 x 8 grid, H =
    192; or ``"histogram"``: the share of pixels in each of 4 x 4 x 4 bins of the RGB cube, H = 64.
    ``mean`` and ``std``, of each channel, are what the images were normalised with.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, features: str, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__()
        if features not in ("pixels", "thumbnail", "histogram"):
            raise ValueError(f"features is 'pixels', 'thumbnail' or 'histogram'; got {features!r}")
        self.features = features
        self.register_buffer("mean", torch.tensor(mean)[:, None, None])
        self.register_buffer("std", torch.tensor(std)[:, None, None])

    def forward(self, images: Tensor) -> Tensor:
        """(B, 3, S, S) -> (B, H)."""
        if self.features == "pixels":
            return images.flatten(1)
        if self.features == "thumbnail":
            return adaptive_avg_pool2d(images, THUMBNAIL).flatten(1)
        # For 8-bit pixels; the half keeps rounding errors away from the borders between bins.
        levels = (
            ((images * self.std + self.mean) * 255).round().clamp(0, 255).long() * LEVELS // 256
        )
        box = (levels[:, 0] * LEVELS + levels[:, 1]) * LEVELS + levels[:, 2]
        return one_hot(box.flatten(1), LEVELS**3).float().mean(1)


def calibrate(
    encoder: nn.Module,
    images: Images | ImageFiles,
    size: int,
    mean: Sequence[float],
    std: Sequence[float],
) -> None:
    """Set the running statistics of every batch norm to those of the training images.

    encoder: (B, 3, S, S) -> (B, H); its mode is restored. images: n, preprocessed as test images.
    mean, std: per channel, on the scale from 0 to 1.
    """
    views = preprocessed(images, size, mean, std, device_of(encoder))
    update_bn((view.contiguous(memory_format=torch.channels_last) for view in views), encoder)
