import copy
import itertools
import math

import pytest
import torch
from torch import Tensor, nn

from rl.encoder import Bilinear, Encoder
from shared import Criterion, Objective, info_nce, query_key, term


def made(size: int = 11, *, seed: int = 0, layers: int = 2) -> Encoder:
    """Two frames of three colours, three filters, latents of four; as initialised."""
    torch.manual_seed(seed)
    return Encoder(channels=6, size=size, filters=3, layers=layers, latent=4)


def nontrivial(size: int = 11) -> Encoder:
    """In float64, no two parameters alike, no bias zero."""
    encoder = made(size).double()
    for parameter in encoder.parameters():
        nn.init.normal_(parameter, std=0.5)
    return encoder


def images(count: int = 2, size: int = 11, channels: int = 6) -> Tensor:
    generator = torch.Generator().manual_seed(5)
    return torch.randint(256, (count, channels, size, size), dtype=torch.uint8, generator=generator)


# Against loops


def encoder_loop(encoder: Encoder, batch: Tensor) -> Tensor:
    """Image by image, filter by filter, pixel by pixel."""
    rows = []
    for image in batch:
        x = [[[value / 255 for value in row] for row in channel] for channel in image.tolist()]
        pixels = torch.tensor(x, dtype=torch.float64)
        for place, layer in enumerate(encoder.convolutions.layers):
            stride = 2 if place == 0 else 1
            side = (pixels.shape[1] - 3) // stride + 1
            outputs = []
            for weight, bias in zip(layer.weight, layer.bias, strict=True):
                for y, z in itertools.product(range(side), range(side)):
                    window = pixels[:, stride * y : stride * y + 3, stride * z : stride * z + 3]
                    outputs.append((bias + (weight * window).sum()).clamp(min=0))
            pixels = torch.stack(outputs).reshape(-1, side, side)
        linear, norm = encoder.head.linear, encoder.head.norm
        flat = [
            pixels[channel, y, z]
            for channel in range(pixels.shape[0])
            for y in range(pixels.shape[1])
            for z in range(pixels.shape[2])
        ]
        latent = torch.stack(
            [
                bias + sum(w * value for w, value in zip(weight, flat, strict=True))
                for weight, bias in zip(linear.weight, linear.bias, strict=True)
            ]
        )
        centred = latent - latent.sum() / len(latent)
        variance = (centred * centred).sum() / len(latent)
        rows.append(norm.weight * centred / (variance + 1e-5).sqrt() + norm.bias)
    return torch.stack(rows)


@pytest.mark.parametrize("size", [11, 12])
def test_values_and_gradients_are_those_of_loops(size: int) -> None:
    encoder, batch = nontrivial(size), images(size=size)
    weights = torch.linspace(-1, 2, 8, dtype=torch.float64).reshape(2, 4).sin()
    parameters = list(encoder.parameters())
    expected = encoder_loop(encoder, batch)
    actual = encoder(batch)
    torch.testing.assert_close(actual, expected, rtol=1e-12, atol=1e-12)
    assert float(expected.detach().std()) > 0.1
    wanted = torch.autograd.grad((expected * weights).sum(), parameters)
    given = torch.autograd.grad((actual * weights).sum(), parameters)
    for name, one, other in zip(dict(encoder.named_parameters()), given, wanted, strict=True):
        assert float(other.norm()) > 1e-4, name
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12)


def nce_loop(query: Tensor, matrix: Tensor, key: Tensor) -> Tensor:
    """-log softmax of each query's own key among all keys, the mean over queries."""
    total = torch.zeros((), dtype=torch.float64)
    for i in range(len(query)):
        scores = []
        for j in range(len(key)):
            score = torch.zeros((), dtype=torch.float64)
            for a, b in itertools.product(range(len(matrix)), repeat=2):
                score = score + query[i, a] * matrix[a, b] * key[j, b]
            scores.append(score)
        highest = max(float(score.detach()) for score in scores)
        total = total - (scores[i] - highest)
        total = total + sum(((s - highest).exp() for s in scores), torch.zeros(())).log()
    return total / len(query)


def test_bilinear_scores_and_their_loss_are_those_of_loops() -> None:
    torch.manual_seed(0)
    similarity = Bilinear(4).double()
    query = torch.randn(5, 4, dtype=torch.float64, requires_grad=True)
    key = torch.randn(5, 4, dtype=torch.float64)
    scores, matrix = similarity(query, key), similarity.W.detach()
    for i, j in itertools.product(range(5), repeat=2):
        score = sum(
            float(query.detach()[i, a] * matrix[a, b] * key[j, b])
            for a, b in itertools.product(range(4), repeat=2)
        )
        assert float(scores.detach()[i, j]) == pytest.approx(score, rel=1e-12, abs=1e-12)
    criterion = Criterion(Objective(term(info_nce, temperature=1.0)), 4, similarity)
    loss, _ = criterion(query_key(query, key), step=0)
    expected = nce_loop(query, similarity.W, key)
    torch.testing.assert_close(loss, expected, rtol=1e-12, atol=1e-12)
    wanted = torch.autograd.grad(expected, (query, similarity.W))
    given = torch.autograd.grad(loss, (query, similarity.W))
    for one, other in zip(given, wanted, strict=True):
        assert float(other.norm()) > 0.1
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12)


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
    with pytest.raises(ValueError, match=r"uint8, 0 to 255; got torch\.float32"):
        made()(images().float())
    with pytest.raises(ValueError, match="6 x 6 pixels are too small for 3"):
        made(6, layers=3)
    with pytest.raises(ValueError, match="at least 1 convolution; got 0"):
        made(layers=0)
    assert made(7, layers=2).convolutions.outputs == 3


def test_half_precision_gives_single_precision_latents_near_the_others() -> None:
    encoder = made()
    exact = encoder(images()).detach()
    with torch.autocast("cpu", torch.bfloat16):
        assert encoder.convolutions(images()).dtype == torch.bfloat16
        near = encoder(images()).detach()
    assert near.dtype == torch.float32
    assert float((near - exact).abs().max()) < 0.1
    assert not torch.equal(near, exact)


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
