import pytest
import torch
from torch import nn

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


@pytest.mark.parametrize("backbone", ["resnet8", "resnet18", "resnet20"])
@pytest.mark.parametrize("stem", ["cifar", "small", "imagenet"])
def test_convolutions_start_as_he_et_al_say_by_their_outputs(backbone: str, stem: str) -> None:
    """Normal, of variance 2 / (outputs times pixels of a kernel); norms are the identity."""
    torch.manual_seed(0)
    convolutions = 0
    for module in make_encoder(backbone, stem).modules():
        if isinstance(module, nn.Conv2d):
            convolutions += 1
            count = module.weight.numel()
            expected = (2 / (module.out_channels * module.kernel_size[0] ** 2)) ** 0.5
            found = float(module.weight.detach().std())
            assert found == pytest.approx(expected, rel=max(0.02, 3 / count**0.5))
            assert module.bias is None
        elif isinstance(module, nn.BatchNorm2d):
            assert torch.equal(module.weight.detach(), torch.ones(module.num_features))
            assert torch.equal(module.bias.detach(), torch.zeros(module.num_features))
    assert convolutions == {"resnet8": 9, "resnet18": 20, "resnet20": 21}[backbone]
