"""Published encoders, which cells evaluate."""

import argparse
import dataclasses
from pathlib import Path

import pytest
import torch

from shared.errors import UserError
from shared.experiment.run import Run
from vision import checkpoints
from vision.checkpoints import file_of
from vision.config import Config
from vision.domain import DOMAIN
from vision.encoder import make_encoder
from vision.train import measure

MOCO = Config(
    dataset="digits",
    weights="moco-v2-resnet50",
    backbone="resnet18",
    stem="small",
    image_size=8,
    epochs=0,
    warmup_epochs=0.0,
    precision="float32",
    protocol="few-shot-5way-5shot-v1",
)


def test_a_cell_evaluates_an_encoder_and_says_which_file_it_was(tmp_path: Path) -> None:
    """Of a file as MoCo's program writes it."""
    torch.manual_seed(4)
    state = make_encoder("resnet18", "small").state_dict()
    file = file_of("moco-v2-resnet50", tmp_path)
    file.parent.mkdir(parents=True)
    content = {f"module.encoder_q.{name}": tensor for name, tensor in state.items()}
    rest = ("module.encoder_q.fc.weight", "module.encoder_k.conv1.weight", "module.queue")
    content |= dict.fromkeys(rest, torch.ones(2))
    torch.save({"state_dict": content, "epoch": 200, "opt": argparse.Namespace(lr=0.03)}, file)
    found = checkpoints.load(MOCO, tmp_path).state_dict()
    assert found.keys() == state.keys()
    assert all(torch.equal(found[name], state[name]) for name in state)
    with pytest.raises(UserError, match="resnet8"):
        checkpoints.load(dataclasses.replace(MOCO, backbone="resnet8"), tmp_path)
    with Run(tmp_path / "run", MOCO, data_root=tmp_path) as run:
        metrics = measure(MOCO, run)
        assert set(run.environment["data"]) == {"weights"}
    assert 20 < float(str(metrics["few_shot_top1"])) < 100


def test_what_is_no_such_network_is_refused(tmp_path: Path) -> None:
    for call, word in (
        (lambda: checkpoints.load(MOCO, tmp_path), "moco_v2_800ep"),
        (
            lambda: checkpoints.load(dataclasses.replace(MOCO, weights="nothing"), tmp_path),
            "nothing",
        ),
        (lambda: DOMAIN.fetch("insdis-resnet50", tmp_path), "insdis-resnet50"),
    ):
        with pytest.raises(UserError, match=word):
            call()
