"""What the exports of all domains have in common, on a small encoder of graphs."""

import dataclasses
import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from huggingface_hub import ModelCard
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from graph.config import Config
from graph.encoder import make_encoder
from graph.export import load_encoder, save_encoder, write
from shared.errors import UserError
from shared.experiment.data import SUMS, sha256_of
from shared.experiment.export import CARD, CONFIG
from shared.experiment.initial import FILE
from shared.experiment.run import Run
from tests.stages.resealed import set_config
from vision.export import load_encoder as load_images

State = dict[str, Tensor]
GCN = Config(dataset="atlas", network="GCN", hidden=6, layers=2, batch_size=64, epochs=3)


def finished(folder: Path, config: Config = GCN, tier: str = "own") -> nn.Module:
    """A finished run's folder, without the training."""
    torch.manual_seed(0)
    encoder = make_encoder(config, 1).double()
    with Run(folder, config, tier=tier) as run:
        run.record_data(atlas="5f" * 32)
        save_encoder(encoder, folder, config=config, features=1)
        run.finish({"accuracy": 61.5, "fold_accuracies": [61.5] * 10, "details": {"graphs": 90}})
    return encoder


def metadata_of(file: Path) -> dict[str, str]:
    with safe_open(file, framework="pt") as stream:
        return dict(stream.metadata())


def test_an_export_is_whole(tmp_path: Path) -> None:
    encoder = finished(tmp_path / "run")
    target = write(tmp_path / "run", tmp_path / "deep" / "export")
    assert target == tmp_path / "deep" / "export"
    assert {each.name for each in target.iterdir()} == {FILE, CONFIG, SUMS, CARD}
    for line in (target / SUMS).read_text().splitlines():
        digest, name = line.split("  ")
        assert hashlib.sha256((target / name).read_bytes()).hexdigest() == digest
    loaded = load_encoder(target)
    assert not loaded.training
    for name, tensor in encoder.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], tensor)
    assert list(target.parent.iterdir()) == [target]  # nothing is left beside it


def test_a_folder_with_files_is_not_written_to(tmp_path: Path) -> None:
    finished(tmp_path / "run")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("years of work")
    (tmp_path / "file").write_text("a file")
    for target in ("mine", "file", "file/export"):
        with pytest.raises(UserError, match=target):
            write(tmp_path / "run", tmp_path / target)
    assert {each.name for each in tmp_path.iterdir()} == {"run", "mine", "file"}
    assert (tmp_path / "mine" / "thesis.tex").read_text() == "years of work"


def test_a_failed_export_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    finished(tmp_path / "run")

    def full(file: Path, content: bytes) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(UserError, match="No space left"):
        write(tmp_path / "run", tmp_path / "export")
    assert {each.name for each in tmp_path.iterdir()} == {"run"}


def edit_tensor(state: State, said: dict[str, str]) -> None:
    state["convs.0.bias"][0] += 1


def edit_metadata(state: State, said: dict[str, str]) -> None:
    said["readout"] = json.dumps("mean")  # the same parameters, another network


@pytest.mark.parametrize("edit", [edit_tensor, edit_metadata])
def test_an_edited_file_is_refused_without_its_folder(
    tmp_path: Path, edit: Callable[[State, dict[str, str]], None]
) -> None:
    finished(tmp_path / "run")
    file = tmp_path / "run" / FILE
    state, said = load_file(file), metadata_of(file)
    edit(state, said)
    save_file(state, file, said)
    for use in (load_encoder, lambda _: write(tmp_path / "run", tmp_path / "export")):
        with pytest.raises(UserError, match=r"encoder\.safetensors: damaged .*SHA-256"):
            use(file)
    assert not (tmp_path / "export").exists()


def test_files_that_hold_no_weights_are_refused(tmp_path: Path) -> None:
    finished(tmp_path / "run")
    file = tmp_path / "run" / FILE
    with pytest.raises(UserError, match="'backbone'"):
        load_images(file)
    content = file.read_bytes()
    file.write_bytes(content[: len(content) // 2])
    with pytest.raises(UserError, match="damaged"):
        load_encoder(file)
    save_file({"weight": torch.zeros(1)}, file)
    with pytest.raises(UserError, match="export"):
        load_encoder(file)
    with pytest.raises(UserError, match="no such file"):
        load_encoder(tmp_path)


def test_another_network_than_the_configuration_s_is_not_saved(tmp_path: Path) -> None:
    encoder = make_encoder(GCN, 1)
    with pytest.raises(ValueError, match="configuration"):
        save_encoder(
            encoder, tmp_path / "run", config=dataclasses.replace(GCN, hidden=7), features=1
        )
    assert not (tmp_path / "run").exists()


def test_runs_without_a_model_are_refused(tmp_path: Path) -> None:
    finished(tmp_path / "smoke", tier="smoke")
    finished(tmp_path / "lost")
    (tmp_path / "lost" / FILE).unlink()
    finished(tmp_path / "foreign")
    set_config(tmp_path / "foreign", '{"backbone": "resnet18", "seed": 0}')
    for folder, word in (
        ("nothing", "not a finished run"),
        ("smoke", "smoke"),
        ("lost", FILE),
        ("foreign", "--domain"),
    ):
        with pytest.raises(UserError, match=word):
            write(tmp_path / folder, tmp_path / "export")
    assert not (tmp_path / "export").exists()


def test_the_card_is_the_record_as_the_hub_reads_it(tmp_path: Path) -> None:
    finished(tmp_path / "run")
    text = (write(tmp_path / "run", tmp_path / "export") / CARD).read_text()
    said = ModelCard(text).data
    assert said.license == "mit"
    assert said.tags == ["contrastive-learning", "info_nce"]
    assert said.model_name == "gcn-atlas-info-nce"
    (result,) = said.eval_results
    found = result.dataset_name, result.metric_name, result.metric_value
    assert found == ("atlas", "accuracy", 61.5)
    environment = json.loads((tmp_path / "run" / "environment.json").read_text())
    for part in (
        environment["commit"],
        "5f" * 32,
        "svm-10fold-nested-v1",
        "cannot stand beside published ones",  # its tier is none of a table
        sha256_of(tmp_path / "export" / FILE),
        (tmp_path / "run" / CONFIG).read_text(),
    ):
        assert part in text


def test_the_card_of_a_baseline_says_that_it_is_not_trained(tmp_path: Path) -> None:
    finished(tmp_path / "untrained", dataclasses.replace(GCN, train=False), tier="paper")
    text = (write(tmp_path / "untrained", tmp_path / "one") / CARD).read_text()
    assert "not trained" in text
    assert not ModelCard(text).data.tags
