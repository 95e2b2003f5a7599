"""The convolution encoder of CURL and its bilinear similarity.

Shapes: B observations, K channels of one, C its side in pixels, F numbers that the convolutions
give, H width of the latent.
"""

import torch
from torch import Tensor, nn

from shared.precision import bfloat16


class Convolutions(nn.Module):
    """3x3 convolutions with a ReLU after each, (B, K, C, C) uint8 -> (B, F).

    The first has stride 2, none has padding. Weights and activations are channels-last, which is
    faster on every device; F is nevertheless in the order channel, row, column. With ``half`` they
    compute in bfloat16, in any context; F is then float32 again.
    """

    def __init__(
        self, *, channels: int, size: int, filters: int, layers: int, half: bool = False
    ) -> None:
        super().__init__()
        self.half_precision = half
        if layers < 1:
            raise ValueError(f"an encoder has at least 1 convolution; got {layers}")
        self.side = (size - 3) // 2 + 1 - 2 * (layers - 1)
        if self.side < 1:
            raise ValueError(
                f"observations of {size} x {size} pixels are too small for {layers} convolutions"
            )
        self.outputs = filters * self.side**2
        inputs = [channels] + [filters] * (layers - 1)
        stack = [
            nn.Conv2d(width, filters, kernel_size=3, stride=2 if number == 0 else 1)
            for number, width in enumerate(inputs)
        ]
        for layer in stack:
            initialise(layer)
            layer.weight.data = layer.weight.data.contiguous(memory_format=torch.channels_last)
        self.layers = nn.ModuleList(stack)

    def forward(self, images: Tensor) -> Tensor:
        """Features (B, F) of images, with pixels divided by 255."""
        if images.dtype != torch.uint8:
            raise ValueError(f"observations are uint8, 0 to 255; got {images.dtype}")
        if not self.half_precision:
            return self._convolved(images)
        with bfloat16(images.device.type):
            x = self._convolved(images)
        return x.float()

    def _convolved(self, images: Tensor) -> Tensor:
        kind = images.device.type
        dtype = next(self.parameters()).dtype
        if torch.is_autocast_enabled(kind):
            dtype = torch.get_autocast_dtype(kind)
        # Rearranged as bytes, which is several times as fast as with wider numbers.
        x = images.contiguous(memory_format=torch.channels_last).to(dtype) / 255
        for layer in self.layers:
            x = layer(x).relu_()
        return x.flatten(1)


class Head(nn.Module):
    """A linear map and layer norm, (B, F) -> (B, H); the norm is in single precision at least."""

    def __init__(self, inputs: int, latent: int) -> None:
        super().__init__()
        self.linear = nn.Linear(inputs, latent)
        self.norm = nn.LayerNorm(latent)
        self.apply(initialise)

    def forward(self, convolved: Tensor) -> Tensor:
        """Latents (B, H) of the convolutions' output."""
        latent: Tensor = self.norm(lifted(self.linear(convolved)))
        return latent


class Encoder(nn.Module):
    """``head(convolutions(images))``, (B, K, C, C) uint8 -> (B, H).

    Args:
        channels: K, colours times stacked frames.
        size: C.
        filters: of each convolution.
        layers: how many convolutions.
        latent: H.
        half: see :class:`Convolutions`.

    Raises:
        ValueError: see :class:`Convolutions`.

    Source: Laskin et al. 2020 (CURL) and their program, which has no tanh at the end.
    """

    def __init__(
        self,
        *,
        channels: int,
        size: int,
        filters: int,
        layers: int,
        latent: int,
        half: bool = False,
    ) -> None:
        super().__init__()
        self.convolutions = Convolutions(
            channels=channels, size=size, filters=filters, layers=layers, half=half
        )
        self.head = Head(self.convolutions.outputs, latent)

    def forward(self, images: Tensor) -> Tensor:
        """Latents (B, H) of observations."""
        latent: Tensor = self.head(self.convolutions(images))
        return latent


class Bilinear(nn.Module):
    """The similarity ``q W k'``, (N, H) and (M, H) -> (N, M), with trained W.

    Args:
        latent: H.

    Source: Laskin et al. 2020 (CURL), Eq. 4; W from U[0, 1) as in their program.
    """

    def __init__(self, latent: int) -> None:
        super().__init__()
        self.W = nn.Parameter(torch.rand(latent, latent))

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        """The score of every query with every key."""
        return query @ self.W @ key.T


def initialise(module: nn.Module) -> None:
    """Orthogonal weights and zero biases of one layer; for ``Module.apply``.

    A convolution is delta-orthogonal: zero but for its centre, which is orthogonal with gain
    sqrt(2) (Xiao et al. 2018).
    """
    if isinstance(module, nn.Linear):
        nn.init.orthogonal_(module.weight)
        nn.init.zeros_(module.bias)
    elif isinstance(module, nn.Conv2d):
        centre = module.kernel_size[0] // 2
        matrix = torch.empty(module.out_channels, module.in_channels)
        nn.init.orthogonal_(matrix, gain=nn.init.calculate_gain("relu"))
        nn.init.zeros_(module.weight)
        with torch.no_grad():
            module.weight[:, :, centre, centre] = matrix
        if module.bias is not None:
            nn.init.zeros_(module.bias)


def lifted(values: Tensor) -> Tensor:
    """The values in at least single precision."""
    return values.float() if values.dtype == torch.bfloat16 else values
