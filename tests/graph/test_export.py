import dataclasses
import json
from pathlib import Path

import pytest
import torch
from torch import nn
from torch_geometric.nn import GCN

from graph.config import Config
from graph.data import load
from graph.encoder import make_encoder
from graph.evaluation import LOGISTIC, embed, logistic_ten_fold
from graph.export import load_encoder, save_encoder, write
from graph.train import measure
from shared.command.reproduce import main
from shared.errors import UserError
from shared.experiment.export import CARD
from shared.experiment.run import Run

ATLAS = Config(dataset="atlas", epochs=1, batch_size=64)


def narrow(features: int) -> nn.Module:
    return GCN(features, 8, 2, out_channels=6)


def narrower(features: int) -> nn.Module:
    return GCN(features, 4, 2, out_channels=6)


def finished(folder: Path, config: Config) -> nn.Module:
    """A finished run's folder, without the training."""
    torch.manual_seed(0)
    encoder = make_encoder(config, 1).double()
    with Run(folder, config) as run:
        save_encoder(encoder, folder, config=config, features=1)
        run.finish({"accuracy": 61.5})
    return encoder


def test_the_encoder_that_a_run_scored_is_exported_and_scored(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = dataclasses.replace(ATLAS, protocol=LOGISTIC)
    with Run(tmp_path / "run", config) as run:
        metrics = run.finish(measure(config, run))["metrics"]
    target = write(tmp_path / "run", tmp_path / "out")
    graphs = load("atlas", tmp_path)
    found = logistic_ten_fold(embed(load_encoder(target), graphs), graphs.y.numpy(), 0)
    assert found["accuracy"] == metrics["accuracy"]

    words = ["evaluate", "graph", str(target), "--protocol", LOGISTIC]
    assert main([*words, "--out", str(tmp_path / "found.json")]) == 0
    assert f"accuracy {metrics['accuracy']:.2f}" in capsys.readouterr().out
    assert main([*words, "--seed", "1", "--out", str(tmp_path / "other.json")]) == 0
    other = logistic_ten_fold(embed(load_encoder(target), graphs), graphs.y.numpy(), 1)
    scored = json.loads((tmp_path / "other.json").read_text())["protocols"][LOGISTIC]["metrics"]
    assert scored["accuracy"] == other["accuracy"] != metrics["accuracy"]
    for wrong in (["--size", "3"], ["--data", "MUTAGG"], ["--protocol", "svm"]):
        assert main(["evaluate", "graph", str(target), *wrong]) == 2
        assert wrong[wrong[0] != "--size"] in capsys.readouterr().err


def test_a_network_of_one_s_own_is_named_by_its_export(tmp_path: Path) -> None:
    encoder = finished(tmp_path / "run", dataclasses.replace(ATLAS, network=narrow))
    target = write(tmp_path / "run", tmp_path / "out")
    assert "import narrow" in (target / CARD).read_text()
    with pytest.raises(UserError, match="narrow"):
        load_encoder(target)
    state = load_encoder(target, narrow).state_dict()
    assert all(torch.equal(item, state[name]) for name, item in encoder.state_dict().items())
    with pytest.raises(UserError, match="size mismatch"):
        load_encoder(target, narrower)
