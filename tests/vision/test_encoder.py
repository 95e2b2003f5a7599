import pytest
import torch

from vision.encoder import make_encoder

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
