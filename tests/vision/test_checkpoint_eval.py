"""Checkpoints under the names of other programs, each with one network and what surrounds it."""

import argparse
import copy
import json
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torchvision.models import resnet18

from shared.command.reproduce import main
from shared.errors import UserError
from shared.experiment.domain import EvaluationRequest
from tests.vision.test_own import save_pets
from vision.checkpoint_eval import loaded, score
from vision.config import Config, Stem
from vision.datasets import IMAGENET_MEAN, IMAGENET_STD
from vision.encoder import make_encoder
from vision.evaluation import knn
from vision.export import save_encoder
from vision.features import embed
from vision.own import folder

State = dict[str, Tensor]
Program = Callable[[nn.Module, nn.Module], tuple[Any, nn.Module]]


def network(seed: int = 0) -> nn.Module:
    """A copy of torchvision's ResNet-18 with a classifier; its batch norms have seen something."""
    return copy.deepcopy(made_once(seed))


@cache
def made_once(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    made = resnet18(num_classes=3)
    for norm in made.modules():
        if isinstance(norm, nn.BatchNorm2d):
            nn.init.uniform_(norm.running_mean, -0.1, 0.1)
    return made.eval()


def under(prefix: str, state: State) -> State:
    return {f"{prefix}{name}": item for name, item in state.items()}


def without_fc(state: State) -> State:
    return {name: item for name, item in state.items() if not name.startswith("fc.")}


def pooled(*parts: nn.Module) -> nn.Module:
    """Features of parts, as the programs that cut networks take them."""
    return nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten())


def headless(one: nn.Module) -> nn.Module:
    one.fc = nn.Identity()
    return one


# Each: what the program saves, and what computes its features, by the program's own code where a
# package has it.


def torchvision_s(one: nn.Module, other: nn.Module) -> tuple[Any, nn.Module]:
    return one.state_dict(), headless(one)


def moco_s(one: nn.Module, other: nn.Module) -> tuple[Any, nn.Module]:
    state = under("module.encoder_k.", other.state_dict())
    state |= under("module.encoder_q.", one.state_dict())
    state |= {"module.queue": torch.zeros(8, 4), "module.queue_ptr": torch.zeros(1)}
    optimiser = torch.optim.SGD(one.parameters(), lr=0.1, momentum=0.9).state_dict()
    return {"epoch": 200, "state_dict": state, "optimizer": optimiser}, headless(one)


def dino_s(one: nn.Module, other: nn.Module) -> tuple[Any, nn.Module]:
    student, teacher = (without_fc(each.state_dict()) for each in (other, one))
    head = {"head.mlp.0.weight": torch.zeros(2, 2)}
    content = {
        "student": under("module.", under("backbone.", student) | head),
        "teacher": under("backbone.", teacher) | head,
        "args": argparse.Namespace(arch="resnet18", lr=0.1),
    }
    return content, headless(one)


def solo_learn_s(one: nn.Module, other: nn.Module) -> tuple[Any, nn.Module]:
    """For small images its stem is 3x3 with padding 2, without pooling."""
    for each in (one, other):
        each.conv1 = nn.Conv2d(3, 64, kernel_size=3, stride=1, padding=2, bias=False)
        each.maxpool = nn.Identity()
    state = under("momentum_backbone.", without_fc(other.state_dict()))
    state |= under("backbone.", without_fc(one.state_dict()))
    state |= {"projector.0.weight": torch.ones(3), "neck.mlp.0.weight": torch.ones(3, 3)}
    return {"state_dict": state, "hyper_parameters": {"a": 1}}, headless(one)


def lightly_s(one: nn.Module, other: nn.Module) -> tuple[Any, nn.Module]:
    """As its examples have it: the parts of torchvision's network but for the classifier."""
    parts = [nn.Sequential(*list(each.children())[:-1]) for each in (one, other)]
    state = under("backbone.", parts[0].state_dict())
    state |= under("backbone_momentum.", parts[1].state_dict())
    return {"state_dict": state | {"projection_head.0.weight": torch.ones(3)}}, pooled(*parts[0])


def lightly_s_own(one: nn.Module, other: nn.Module) -> tuple[Any, nn.Module]:
    """Its ResNetGenerator has no modules for ReLU and pooling, and another word for one part.

    So the sequence of its parts, which its examples train, has no ReLU in the stem.
    """
    from lightly.models import ResNetGenerator

    parts = nn.Sequential(*list(ResNetGenerator("resnet-18").children())[:-1]).eval()
    return under("backbone.", parts.state_dict()), pooled(parts)


def lightly_s_whole(one: nn.Module, other: nn.Module) -> tuple[Any, nn.Module]:
    from lightly.models import ResNetGenerator

    made = ResNetGenerator("resnet-18").eval()
    state = {name: item.clone() for name, item in made.state_dict().items()}
    made.linear = nn.Identity()
    return state, made


def vissl_s(one: nn.Module, other: nn.Module) -> tuple[Any, nn.Module]:
    trunk = under("_feature_blocks.", without_fc(one.state_dict()))
    model = {"trunk": trunk, "heads": {"0.clf.0.weight": torch.ones(3, 3)}}
    return {"classy_state_dict": {"base_model": {"model": model}, "loss": {}}}, headless(one)


def hcl_s(one: nn.Module, other: nn.Module) -> tuple[Any, nn.Module]:
    """HCL's and DCL's: an nn.Sequential without pooling and classifier, under DataParallel."""
    parts = [each for each in one.children() if not isinstance(each, nn.Linear | nn.MaxPool2d)]
    state = under("module.f.", nn.Sequential(*parts).state_dict())
    head = {"module.g.0.weight": torch.ones(3, 3), "module.g.1.weight": torch.ones(3)}
    return state | head, pooled(*parts)


PROGRAMS = (
    *(torchvision_s, moco_s, dino_s, solo_learn_s, lightly_s, lightly_s_own, lightly_s_whole),
    *(vissl_s, hcl_s),
)


def assert_same_features(found: nn.Module, expected: nn.Module, side: int = 32) -> None:
    images = torch.randn(2, 3, side, side)
    with torch.no_grad():
        features = expected(images)
        torch.testing.assert_close(found(images), features, rtol=1e-4, atol=1e-5)
    assert features.std() > 1e-3


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_every_program_s_file_gives_its_features(tmp_path: Path, program: Program) -> None:
    content, source = program(network(0), network(1))
    torch.save(content, tmp_path / "model.pth")
    # Trying every ResNet takes seconds: it is done for names and for numbers of the parts.
    backbone = None if program in (moco_s, hcl_s) else "resnet18"
    stem: Stem | None = "small_padding_2" if program is solo_learn_s else None
    found, match = loaded(tmp_path / "model.pth", backbone=backbone, stem=stem)
    assert match.filled
    assert_same_features(found, source)


def test_the_heads_of_a_transformer_are_an_option(tmp_path: Path) -> None:
    """Of a ViT with twice timm's heads, as MoCo v3's, its matrices large enough to attend."""
    torch.manual_seed(0)
    source = timm.create_model("vit_tiny_patch16_224", num_classes=0, img_size=32, num_heads=6)
    for parameter in source.eval().parameters():
        if parameter.ndim == 2:
            parameter.data.mul_(4)
    state = source.state_dict()
    content = under("module.base_encoder.", state | {"head.0.weight": torch.ones(3, 3)})
    content |= under("module.momentum_encoder.", {k: 2 * v for k, v in state.items()})
    torch.save({"state_dict": content}, tmp_path / "moco-v3.pth")
    images = torch.randn(2, 3, 32, 32)
    wanted = {"backbone": "vit_tiny_patch16_224", "stem": "imagenet", "size": 32}
    found, match = loaded(tmp_path / "moco-v3.pth", **wanted, heads=6)
    with torch.no_grad():
        torch.testing.assert_close(found(images), source(images))
        other, _ = loaded(tmp_path / "moco-v3.pth", **wanted)
        assert not torch.allclose(other(images), source(images), rtol=1e-2)
    assert "6 attention heads" in match.lines()[3]
    with pytest.raises(ValueError, match="7 attention heads"):
        loaded(tmp_path / "moco-v3.pth", **wanted, heads=7)
    with pytest.raises(ValueError, match="heads"):
        make_encoder("resnet18", heads=3)


def test_the_classifier_in_a_head_of_timm_s_is_left(tmp_path: Path) -> None:
    torch.manual_seed(0)
    source = timm.create_model("test_convnext").eval()
    save_file(source.state_dict(), tmp_path / "model.safetensors")  # as the hub has it
    found, match = loaded(tmp_path / "model.safetensors", backbone="test_convnext")
    assert match.dropped == ("head.fc.bias", "head.fc.weight")
    source.reset_classifier(0)
    assert_same_features(found, source, side=64)


@pytest.mark.parametrize(
    ("name", "options", "extra"),
    [
        ("seresnet50", {}, r"backbone\.layer1\.0\.se\."),
        ("vit_tiny_patch16_224", {"init_values": 0.5}, r"backbone\.blocks\.0\.ls1\.gamma"),
        ("vit_tiny_patch16_224", {"qk_norm": True}, r"backbone\.blocks\.0\.attn\.k_norm\."),
        (
            "vit_tiny_patch16_224",
            {"reg_tokens": 4, "no_embed_class": True, "class_token": False, "global_pool": "avg"},
            "backbone.(fc_norm|reg_token)",
        ),
    ],
)
def test_parts_that_the_network_lacks_are_refused(
    tmp_path: Path, name: str, options: dict[str, Any], extra: str
) -> None:
    sized = {"img_size": 32} if name.startswith("vit") else {}
    source = timm.create_model(name, num_classes=0, **sized, **options)
    torch.save({"state_dict": under("backbone.", source.state_dict())}, tmp_path / "model.pth")
    backbone = "resnet50" if name == "seresnet50" else name
    with pytest.raises(UserError, match=extra):
        loaded(tmp_path / "model.pth", backbone=backbone, stem="imagenet", size=32)


def test_two_networks_that_fit_are_refused_unless_one_is_chosen(tmp_path: Path) -> None:
    one, other = network(0), network(1)
    content = {"model": one.state_dict(), "model_ema": other.state_dict(), "copy": {}}
    file = tmp_path / "model.pth"
    torch.save(content, file)
    with pytest.raises(UserError, match=r"'model'.*'model_ema'"):
        loaded(file, backbone="resnet18")
    found, _ = loaded(file, backbone="resnet18", prefix="model_ema")
    assert torch.equal(found.conv1.weight, other.conv1.weight)
    torch.save(content | {"model_ema": one.state_dict()}, file)  # the same twice
    assert loaded(file, backbone="resnet18")[1].filled
    torch.save(moco_s(one, other)[0], file)
    found, _ = loaded(file, prefix="module.encoder_k.")
    assert torch.equal(found.conv1.weight, other.conv1.weight)
    with pytest.raises(UserError, match="does not fill"):
        loaded(file, prefix="module.encoder.")


def test_an_export_is_known_to_every_door(tmp_path: Path) -> None:
    torch.manual_seed(0)
    source = make_encoder("resnet18", "small").eval()
    save_encoder(source, tmp_path, config=Config(stem="small"))
    file = tmp_path / "encoder.safetensors"
    assert_same_features(loaded(file)[0], source)
    with pytest.raises(UserError, match="stem is small"):
        loaded(file, stem="cifar")
    other = file.rename(tmp_path / "weights.bin")  # whatever its name
    assert_same_features(loaded(other)[0], source)


def test_the_hub_s_configuration_tells_networks_of_equal_tensors_apart(tmp_path: Path) -> None:
    torch.manual_seed(0)
    source = timm.create_model("resnetblur18" if timm.is_model("resnetblur18") else "resnetblur50")
    name = source.default_cfg["architecture"]
    plain = name.replace("blur", "")
    save_file(source.state_dict(), tmp_path / "model.safetensors")
    assert loaded(tmp_path / "model.safetensors", backbone=plain)[1].filled
    (tmp_path / "config.json").write_text(json.dumps({"architecture": f"{name}.some_weights"}))
    with pytest.raises(UserError, match=name):
        loaded(tmp_path / "model.safetensors", backbone=plain)
    found, _ = loaded(tmp_path / "model.safetensors", backbone=name, stem="imagenet")
    source.reset_classifier(0)
    assert_same_features(found, source.eval(), side=64)


def test_safetensors_and_the_stem_of_small_images(tmp_path: Path) -> None:
    torch.manual_seed(0)
    one = make_encoder("resnet20", "cifar").eval()
    state = {name: item.contiguous() for name, item in one.state_dict().items()}
    save_file(under("encoder.", state), tmp_path / "a.safetensors")
    assert_same_features(loaded(tmp_path / "a.safetensors")[0], one, side=16)
    images = torch.randn(2, 3, 16, 16)
    other, _ = loaded(tmp_path / "a.safetensors", stem="strided")
    assert not torch.allclose(other(images), one(images))


def test_a_network_that_is_not_filled_or_another_is_refused(tmp_path: Path) -> None:
    state = without_fc(network().state_dict())
    del state["layer3.1.bn2.weight"]
    state["layer4.0.conv1.weight"] = torch.zeros(2)
    torch.save(state, tmp_path / "model.pth")
    with pytest.raises(UserError, match=r"layer3\.1\.bn2\.weight, layer4\.0\.conv1\.weight"):
        loaded(tmp_path / "model.pth")
    torch.save(network().state_dict(), tmp_path / "model.pth")
    with pytest.raises(UserError, match="--backbone resnet18"):
        loaded(tmp_path / "model.pth", backbone="resnet34")
    torch.manual_seed(0)
    torch.save(make_encoder("resnet34", "imagenet").state_dict(), tmp_path / "model.pth")
    with pytest.raises(UserError, match="--backbone resnet34"):
        loaded(tmp_path / "model.pth", backbone="resnet18")
    assert len(loaded(tmp_path / "model.pth")[1].tensors) == 216
    torch.save(hcl_s(network(), network())[0], tmp_path / "model.pth")
    with pytest.raises(UserError, match="--backbone resnet18"):
        loaded(tmp_path / "model.pth", backbone="resnet8", stem="imagenet")


class Payload:
    """What a malicious file would run."""

    def __reduce__(self) -> Any:
        return (open, ("/tmp/never-written", "w"))


@pytest.mark.parametrize("legacy", [False, True])
@pytest.mark.parametrize(
    ("content", "word"),
    [
        ({"best": np.float64(71.2)}, "multiarray"),
        ({"conv1.weight": torch.zeros(3), "hook": Payload()}, "io.open"),
        (torch.zeros(3), "Tensor"),
        ({"epoch": 3}, "no named tensors"),
        (b"", "copy it again"),
        (b"<!DOCTYPE html>", "web page"),
        (b"version https://git-lfs.github.com/spec/v1", "git lfs"),
        (b"no checkpoint", "torch.save"),
        ("cut", "cannot be read"),
        ("not finite", "layer1.0.conv1.weight"),
        (None, "no such file"),
    ],
)
def test_files_without_weights_are_named_in_one_line(
    tmp_path: Path, content: Any, word: str, legacy: bool
) -> None:
    file = tmp_path / "model.pth"
    if isinstance(content, bytes):
        file.write_bytes(content)
    elif content is not None:
        state = network().state_dict()
        if content == "not finite":
            state["layer1.0.conv1.weight"][0] = torch.nan
        kept = state if isinstance(content, str) else content
        torch.save(kept, file, _use_new_zipfile_serialization=not legacy)
        if content == "cut":
            file.write_bytes(file.read_bytes()[:10000])
    with pytest.raises(UserError, match=re.escape(word)) as caught:
        loaded(file)
    assert str(caught.value).isprintable()  # without line breaks and a terminal's colours
    assert "model.pth" in str(caught.value)
    assert not Path("/tmp/never-written").exists()  # nothing in a file is run


@pytest.fixture
def shapes(tmp_path: Path) -> Path:
    return save_pets(tmp_path / "shapes")


def test_the_verb_scores_a_checkpoint_on_a_folder(
    shapes: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    torch.save(moco_s(network(0), network(1))[0], tmp_path / "model.pth")
    out = tmp_path / "numbers" / "found.json"
    words = ["evaluate", "vision", str(tmp_path / "model.pth"), "--data", str(shapes)]
    words += ["--protocol", "knn-200-v1,linear-l2-v1", "--size", "32", "--out", str(out)]
    assert main(words) == 0
    printed = capsys.readouterr().out
    content = json.loads(out.read_text())
    scores = {each: found["metrics"] for each, found in content["protocols"].items()}
    for protocol, metric in (("knn-200-v1", "knn_top1"), ("linear-l2-v1", "l2_top1")):
        assert re.search(rf"{protocol}\s+{metric}\s+{scores[protocol][metric]:.2f}\s", printed)
    encoder, _ = loaded(tmp_path / "model.pth")
    parts = [folder(shapes, "train"), folder(shapes, "test")]
    train, test = (embed(encoder, each, 32, IMAGENET_MEAN, IMAGENET_STD) for each in parts)
    labels = [each.labels for each in parts]
    expected = knn(train, labels[0], test, labels[1], classes=3, temperature=0.5)
    assert scores["knn-200-v1"]["knn_top1"] == expected
    assert content["data"] == f"folder:{shapes}"
    assert list(content["protocols"]["knn-200-v1"]["environment"]["data"]) == [f"folder:{shapes}"]


def test_an_export_of_this_project_knows_its_network(shapes: Path, tmp_path: Path) -> None:
    config = Config(backbone="resnet8", stem="small", image_size=32)
    save_encoder(make_encoder("resnet8", "small"), tmp_path, config=config)
    found = score(EvaluationRequest(tmp_path, str(shapes), ("knn-200-v1",), say=lambda text: None))
    assert set(found.protocols["knn-200-v1"]["metrics"]) == {"knn_top1"}
    with pytest.raises(UserError, match="--backbone"):
        score(EvaluationRequest(tmp_path, str(shapes), options={"backbone": "resnet8"}))


@pytest.mark.parametrize(
    ("words", "word"),
    [
        (["vision", "m.pth"], "--data FOLDER"),
        (["vision", "m.pth", "--data", "CIFAR"], "'CIFAR'"),
        (["vision", "m.pth", "--data", "digits", "--protocol", "knn"], "'knn'"),
        (["vision", "m.pth", "--data", "digits", "--stem", "tiny"], "'tiny'"),
        (["vision", "m.pth", "--data", "digits", "--heads", "0"], "--heads"),
        (["vision", "m.pth", "--data", "digits", "--out", "results/a.json"], "results"),
        (["rl", "m.pth"], "rl"),
        (["visio", "m.pth"], "vision"),
    ],
)
def test_models_that_cannot_be_scored_are_said_in_one_line(
    words: list[str],
    word: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("m.pth").touch()
    assert main(["evaluate", *words]) == 2
    assert word in capsys.readouterr().err
