"""S3D is torchvision's; who is compared with whom, and what is refused."""

import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from shared import Objective, alignment, term
from video.config import STRIDES, Config
from video.encoder import (
    S3D,
    Colours,
    Networks,
    R2Plus1D,
    Thumbnail,
    check,
    compare,
    encoder_of,
    head,
    pooled_by_axis,
)

SMALL = dataclasses.replace(
    Config().reduced(), head_hidden=16, head_output=8, batch_size=6, precision="float32"
)
QUEUE = 10


def small(**changes: Any) -> Config:
    return dataclasses.replace(SMALL, **{"method": "simclr", **changes})


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the place of S3D, for the tests that only look at who meets whom."""
    torch.manual_seed(0)
    made = nn.Sequential(nn.Flatten(), nn.Linear(3 * 2 * 4 * 4, 24), nn.BatchNorm1d(24))
    made.dim = 24
    monkeypatch.setattr("video.encoder.S3D", lambda **constants: made)


def network_of_width_5() -> nn.Module:
    return nn.Sequential(nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(3, 5))


def maps() -> nn.Module:
    return nn.Conv3d(3, 4, 1)


def clips(count: int = 6) -> Tensor:
    return torch.randn(count, 3, 2, 4, 4)


# S3D


def test_at_width_1_it_is_torchvisions() -> None:
    from torchvision.models.video import s3d  # importable now that video.encoder is

    torch.manual_seed(0)
    theirs = s3d().double()  # batch norms of few values make rounding large
    state = {name: item for name, item in theirs.state_dict().items() if "classifier" not in name}
    ours = S3D(momentum=0.001, epsilon=0.001).double()
    ours.load_state_dict(state)  # strict: the same names and shapes
    assert sum(parameter.numel() for parameter in ours.parameters()) == 7_910_048
    assert ours.dim == 1024
    video = torch.randn(2, 3, 16, 32, 32, dtype=torch.float64)
    with torch.no_grad():
        expected = theirs.features(video).mean((2, 3, 4))
        found = ours(video)
    assert expected.std() > 0.1
    torch.testing.assert_close(found, expected.float())
    for name, buffer in ours.named_buffers():
        torch.testing.assert_close(buffer, theirs.get_buffer(name))


@pytest.mark.parametrize(("width", "dim"), [(0.01, 32), (0.25, 256)])
def test_widths_are_multiples_of_8(width: float, dim: int) -> None:
    network = S3D(width=width)
    assert network.dim == dim
    planes = [
        module.num_features for module in network.modules() if hasattr(module, "num_features")
    ]
    assert all(count >= 8 and count % 8 == 0 for count in planes)
    assert network.eval()(torch.randn(1, 3, 8, 32, 32)).shape == (1, dim)
    if width == 0.25:  # 208 channels are 52, which is as near to 48 as to 56
        assert network.features[8].branch1[1][0][0].out_channels == 56


CONSTANTS = {"momentum": 0.2, "epsilon": 0.3}


def test_constants_and_start() -> None:
    torch.manual_seed(0)
    small = R2Plus1D(width=0.125, strides=STRIDES, **CONSTANTS)
    network = S3D(width=0.25, **CONSTANTS)
    norms = [module for module in network.modules() if isinstance(module, nn.BatchNorm3d)]
    others = [module for module in small.modules() if isinstance(module, nn.BatchNorm3d)]
    assert {(norm.momentum, norm.eps) for norm in (*norms, *others)} == {(0.2, 0.3)}
    weights = [item.weight for item in network.modules() if isinstance(item, nn.Conv3d)]
    assert len(weights) == len(norms) == 77
    everything = torch.cat([weight.flatten() for weight in weights])
    assert everything.std().item() == pytest.approx(0.01, rel=0.01)
    assert abs(everything.mean().item()) < 1e-4
    # the order of the elements in memory is not that of the state
    assert weights[0].is_contiguous(memory_format=torch.channels_last_3d)


# methods


@pytest.mark.usefixtures("tiny")
def test_simclr_has_the_pairs_that_are_asked_for() -> None:
    first, second = clips(), clips()
    networks = Networks(small(), QUEUE)
    x, z = networks.head(networks.encoder(torch.cat([first, second]))).chunk(2)
    for pairs, candidate in (("both_views", torch.cat([x, z])), ("first_view", x)):
        found, _ = compare(small(pairs=pairs), networks, first, second)
        torch.testing.assert_close(found.anchor, z)
        torch.testing.assert_close(found.candidate, candidate)


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"method": "swav"}, "swav"),
        ({"objective": Objective(term(alignment))}, "collapse"),
        ({"method": "moco", "pairs": "first_view"}, "first_view"),
        ({"clip_frames": 7}, "clip_frames 7"),
        ({"size": 16}, "size 16"),
        ({"batch_size": 1}, "batch_size 1"),
        ({"method": "moco", "batch_size": 3}, "batch_size 3"),
        ({"epochs": -1}, "epochs"),
        ({"network": "thumbnail"}, "train=False"),
        ({"strides": (1, 1, 1, 1, 1)}, "strides"),
        ({"calibrate": True}, "calibrate"),
        ({"chunk": 0}, "chunk"),
        ({"network": "x3d", "width": 0.5}, "x3d_"),
        ({"network": "x3d_s", "width": 0.5}, "width"),
        ({"network": network_of_width_5, "width": 0.5}, "width"),
    ],
)
def test_configurations_without_meaning_are_refused(changes: dict[str, Any], word: str) -> None:
    check(small(batch_size=2))
    with pytest.raises(ValueError, match=word):
        check(small(**changes))


@pytest.mark.parametrize(("network", "word"), [("s3dd", "s3d"), (maps, r"\(1, 4, 8")])
def test_what_is_no_network_is_refused(network: Any, word: str) -> None:
    with pytest.raises(ValueError, match=word):
        encoder_of(small(network=network, width=1.0, size=32))


# R(2+1)D and the features without training


@pytest.mark.parametrize(
    ("size", "stride", "padding"),
    [
        ((1, 3, 3), (1, 2, 2), (0, 1, 1)),
        ((3,) * 3, (2,) * 3, (1,) * 3),
        ((2,) * 3, (2,) * 3, (0,) * 3),
    ],
)
def test_pooling_by_axis_is_torchs(size: Any, stride: Any, padding: Any) -> None:
    """Values and gradients, at even and odd sizes; it is used on a GPU, by ``--deterministic``."""
    maps = torch.randn(2, 3, 5, 8, 9, requires_grad=True)
    expected = nn.functional.max_pool3d(maps, size, stride, padding)
    found = pooled_by_axis(maps, size, stride, padding)
    assert torch.equal(found, expected)
    weights = torch.randn_like(expected)
    gradients = [torch.autograd.grad((each * weights).sum(), maps) for each in (found, expected)]
    torch.testing.assert_close(*gradients)


def shapes_of(network: R2Plus1D) -> list[tuple[int, ...]]:
    """Of the maps after the stem and after each stage."""
    shapes: list[tuple[int, ...]] = []
    for stage in (network.stem, *network.stages):
        stage.register_forward_hook(lambda module, given, out: shapes.append(tuple(out.shape[1:])))
    with torch.no_grad():
        assert network.eval()(torch.randn(2, 3, 8, 32, 32)).shape == (2, network.dim)
    return shapes


@pytest.mark.parametrize("kind", [S3D, R2Plus1D])
def test_features_are_float32_under_autocast(kind: Any) -> None:
    options = {} if kind is S3D else {"strides": STRIDES}
    network = kind(width=0.125, **options, **CONSTANTS)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        assert network(torch.randn(2, 3, 8, 32, 32)).dtype == torch.float32


def test_strides_of_a_small_network() -> None:
    network = R2Plus1D(width=0.25, strides=STRIDES, **CONSTANTS)
    assert network.stem[0].out_channels == 17  # as many parameters as a convolution of 3 x 3 x 3
    assert network.dim == 128
    assert shapes_of(network) == [
        *((16, 8, 16, 16), (16, 8, 16, 16)),
        *((32, 4, 8, 8), (64, 2, 4, 4), (128, 1, 2, 2)),
    ]
    shapes = shapes_of(R2Plus1D(width=0.125, strides=(1, 1, 2, 1, 2), **CONSTANTS))
    assert [shape[1:] for shape in shapes] == [
        *((8, 32, 32), (8, 32, 32), (4, 16, 16)),
        *((4, 16, 16), (2, 8, 8)),
    ]


def test_gradients_of_few_frames_are_those_of_double_precision() -> None:
    """The stages end at one frame; torch has been wrong on a CPU for short clips."""
    gradients = []
    for dtype in (torch.float64, torch.float32):
        torch.manual_seed(0)
        network = R2Plus1D(width=0.125, strides=STRIDES, **CONSTANTS)
        clips_ = torch.randn(6, 3, 8, 16, 16, generator=torch.Generator().manual_seed(1))
        network.to(dtype)
        features = network.stages(network.stem(clips_.to(dtype))).mean((2, 3, 4))
        loss = (features * torch.linspace(-1, 1, features.numel()).view_as(features)).sum()
        gradients.append(torch.autograd.grad(loss, list(network.parameters())))
    for double, single in zip(*gradients, strict=True):
        off = (double - single).norm() / double.norm().clamp(min=1e-3)
        assert off < 1e-3


def test_thumbnails_are_means_and_colours_are_counted() -> None:
    video = torch.randn(2, 3, 4, 16, 16)
    assert Thumbnail()(video).shape == (2, Thumbnail.dim) == (2, 192)
    found = Thumbnail()(video).view(2, 3, 8, 8)
    torch.testing.assert_close(found[1, 2, 3, 5], video[1, 2, :, 6:8, 10:12].mean())
    from video.augmentation import MEAN, STD

    pixels = torch.tensor([[0.0, 0.5, 1.0], [0.99, 0.17, 0.34]]).T.view(1, 3, 2, 1, 1)
    pixels = pixels.repeat(1, 1, 1, 1, 3)
    mean, std = (torch.tensor(each).view(3, 1, 1, 1) for each in (MEAN, STD))
    (found,) = Colours()((pixels - mean) / std)
    assert found.sum() == 1
    expected = {(0 * 6 + 3) * 6 + 5: 0.5, (5 * 6 + 1) * 6 + 2: 0.5}
    assert {int(place): float(found[place]) for place in found.nonzero()} == expected


def test_a_head_with_a_batch_norm_sees_the_groups_of_the_encoder(tiny: None) -> None:
    """MoCo's keys and queries are normalised as their encoders' halves are."""
    torch.manual_seed(0)
    networks = Networks(small(method="moco", head_batch_norm=True), QUEUE).train()
    first, second = clips(), clips()
    pairs, _ = compare(small(method="moco", head_batch_norm=True), networks, first, second)
    halves = [networks.head(networks.encoder(half)) for half in first.chunk(2)]
    torch.testing.assert_close(pairs.anchor, torch.cat(halves))
    together = networks.head(torch.cat([networks.encoder(half) for half in first.chunk(2)]))
    assert not torch.allclose(pairs.anchor, together, atol=1e-3)
    normed = head(4, 5, 6, batch_norm=True)
    assert [type(layer).__name__ for layer in normed] == ["Linear", "BatchNorm1d", "ReLU", "Linear"]
