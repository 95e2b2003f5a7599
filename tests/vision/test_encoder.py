import pytest
import torch
from torch import nn

from vision.encoder import head, make_encoder

STEMS = [("cifar", 4), ("strided", 2), ("small", 2), ("imagenet", 1)]


@pytest.mark.parametrize(("stem", "side"), STEMS)
def test_the_stems_shrink_a_32_pixel_image_to_their_sides(stem: str, side: int) -> None:
    network = make_encoder("resnet18", stem)
    seen: list[torch.Size] = []
    network.layer4.register_forward_hook(lambda _, __, output: seen.append(output.shape))
    features = network(torch.randn(2, 3, 32, 32))
    assert features.shape == (2, 512)
    assert seen == [(2, 512, side, side)]


@pytest.mark.parametrize("backbone", ["resnet18", "resnet50"])
def test_parameters_are_torchvision_s(backbone: str) -> None:
    from torchvision import models

    theirs = {
        name: item.shape
        for name, item in getattr(models, backbone)().state_dict().items()
        if not name.startswith("fc.")
    }
    ours = {
        name: item.shape for name, item in make_encoder(backbone, "imagenet").state_dict().items()
    }
    assert ours == theirs
    cifar = {
        name: item.shape for name, item in make_encoder(backbone, "cifar").state_dict().items()
    }
    assert cifar == {**theirs, "conv1.weight": (64, 3, 3, 3)}


def test_known_numbers_of_parameters() -> None:
    def count(module: nn.Module) -> int:
        return sum(parameter.numel() for parameter in module.parameters())

    # torchvision prints 11,689,512 with the classifier of 513,000
    assert count(make_encoder("resnet18", "imagenet")) == 11_176_512
    # 3x3 convolutions 3-32-32-32-64-64-128-128, two of 1x1, and 2 for each channel's batch norm
    threes = 3 * 32 + 2 * 32 * 32 + 32 * 64 + 64 * 64 + 64 * 128 + 128 * 128
    norms = 2 * (3 * 32 + 3 * 64 + 3 * 128)
    assert count(make_encoder("resnet8", "strided")) == 9 * threes + 32 * 64 + 64 * 128 + norms
    assert count(head(512, 2048, 128)) == 512 * 2048 + 2 * 2048 + 2048 * 128 + 128
    normed = head(2048, 2048, 128, output_norm=True)
    trained = sum(item.numel() for item in normed.parameters() if item.requires_grad)
    assert trained == 2048 * 2048 + 2 * 2048 + 2048 * 128 + 128
    plain = head(512, 4096, 256, output_norm=True, output_scale=False)  # MoCo v3's
    assert count(plain) == 512 * 4096 + 2 * 4096 + 4096 * 256
    output = plain(torch.randn(64, 512))
    torch.testing.assert_close(output.mean(0), torch.zeros(256), atol=1e-5, rtol=0)
