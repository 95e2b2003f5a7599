import copy
import math

import pytest
import torch
from torch import Tensor

from rl.encoder import Encoder


def made(size: int = 11, *, seed: int = 0, layers: int = 2) -> Encoder:
    """Two frames of three colours, three filters, latents of four; as initialised."""
    torch.manual_seed(seed)
    return Encoder(channels=6, size=size, filters=3, layers=layers, latent=4)


def images(count: int = 2, size: int = 11, channels: int = 6) -> Tensor:
    generator = torch.Generator().manual_seed(5)
    return torch.randint(256, (count, channels, size, size), dtype=torch.uint8, generator=generator)


def test_convolutions_alone_can_be_in_half_precision() -> None:
    seen = []

    def encoder(half: bool) -> Encoder:
        torch.manual_seed(0)
        encoder = Encoder(channels=9, size=20, filters=8, layers=2, latent=5, half=half)
        for layer in encoder.convolutions.layers:
            layer.register_forward_hook(lambda _, __, output: seen.append(output.dtype))
        return encoder

    exact, half = encoder(False), encoder(True)
    batch = images(4, 20, 9)
    wanted, given = exact(batch), half(batch)
    assert seen == [torch.float32] * 2 + [torch.bfloat16] * 2
    assert half.convolutions(batch).dtype == given.dtype == torch.float32
    assert 1e-6 < float((given - wanted).detach().abs().max()) < 0.1
    weights = torch.linspace(-1, 1, given.numel()).view_as(given)
    for one, other in zip(exact.parameters(), half.parameters(), strict=True):
        (one,) = torch.autograd.grad((weights * exact(batch)).sum(), one)
        (other,) = torch.autograd.grad((weights * half(batch)).sum(), other)
        assert other.dtype == torch.float32
        torch.testing.assert_close(other, one, rtol=0.1, atol=0.05 * float(one.abs().max()))


# Sizes and initialisation


def test_at_full_size_it_has_the_published_sizes() -> None:
    encoder = Encoder(channels=9, size=84, filters=32, layers=4, latent=50)
    sides = []
    for layer in encoder.convolutions.layers:
        layer.register_forward_hook(lambda _, __, output: sides.append(tuple(output.shape[1:])))
    latent = encoder(images(2, 84, 9))
    assert sides == [(32, side, side) for side in (41, 39, 37, 35)]
    assert encoder.convolutions.side == 35
    assert encoder.convolutions.outputs == 39_200
    assert latent.shape == (2, 50)
    convolutions = (9 * 9 + 1) * 32 + 3 * (32 * 9 + 1) * 32
    head = (39_200 + 1) * 50 + 2 * 50
    assert sum(p.numel() for p in encoder.parameters()) == convolutions + head == 1_990_518
    # Layer norm without a shift: mean 0 and length sqrt(50).
    lengths = torch.linalg.vector_norm(latent, dim=1)
    torch.testing.assert_close(lengths, torch.full((2,), math.sqrt(50)), rtol=1e-2, atol=0)


def test_it_is_initialised_orthogonal_and_delta_orthogonal() -> None:
    torch.manual_seed(0)
    encoder = Encoder(channels=6, size=16, filters=8, layers=3, latent=5)
    for layer in encoder.convolutions.layers:
        weight = layer.weight.detach().clone()
        centre = weight[:, :, 1, 1].clone()
        weight[:, :, 1, 1] = 0
        assert torch.equal(weight, torch.zeros_like(weight))
        assert torch.equal(layer.bias, torch.zeros(8))
        product = centre.T @ centre
        torch.testing.assert_close(product, 2 * torch.eye(len(product)), rtol=1e-5, atol=1e-5)
    matrix = encoder.head.linear.weight
    torch.testing.assert_close(matrix @ matrix.T, torch.eye(5), rtol=1e-5, atol=1e-5)
    assert torch.equal(encoder.head.linear.bias, torch.zeros(5))
    assert torch.equal(encoder.head.norm.weight, torch.ones(5))
    assert torch.equal(encoder.head.norm.bias, torch.zeros(5))
    assert not torch.equal(made(seed=1).head.linear.weight, made(seed=2).head.linear.weight)
    assert torch.equal(made(seed=1).head.linear.weight, made(seed=1).head.linear.weight)


def test_what_it_cannot_encode_is_refused() -> None:
    with pytest.raises(ValueError, match="uint8"):
        made()(images().float())
    with pytest.raises(ValueError, match="6 x 6"):
        made(6, layers=3)
    with pytest.raises(ValueError, match="1 convolution"):
        made(layers=0)
    assert made(7, layers=2).convolutions.outputs == 3


@pytest.mark.cuda
def test_on_a_gpu_values_and_gradients_are_those_of_the_cpu() -> None:
    encoder, batch = made().double(), images()
    other = copy.deepcopy(encoder).cuda()
    results = []
    for module, inputs in ((encoder, batch), (other, batch.cuda())):
        latent = module(inputs)
        latent.square().sin().sum().backward()
        results.append([latent, *(p.grad for p in module.parameters())])
    for one, two in zip(*results, strict=True):
        torch.testing.assert_close(one, two.cpu(), rtol=1e-8, atol=1e-9)
