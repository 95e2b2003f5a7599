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
from shared import Objective, Projection, info_nce, term
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
        save_encoder(encoder, folder, config=config, features=1, dataset=config.dataset)
        run.finish({"accuracy": 61.5, "fold_accuracies": [61.5] * 10, "details": {"graphs": 90}})
    return encoder


def metadata_of(file: Path) -> dict[str, str]:
    with safe_open(file, framework="pt") as stream:
        return dict(stream.metadata())


def assert_equal(found: nn.Module, expected: nn.Module) -> None:
    states = found.state_dict(), expected.state_dict()
    assert states[0].keys() == states[1].keys()
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])


def test_an_export_is_whole_and_replaces_an_earlier_one(tmp_path: Path) -> None:
    encoder = finished(tmp_path / "run")
    before = torch.get_rng_state()
    target = write(tmp_path / "run", tmp_path / "deep" / "export")
    assert target == tmp_path / "deep" / "export"
    assert {each.name for each in target.iterdir()} == {FILE, CONFIG, SUMS, CARD}
    for line in (target / SUMS).read_text().splitlines():
        digest, name = line.split("  ")
        assert hashlib.sha256((target / name).read_bytes()).hexdigest() == digest
    loaded = load_encoder(target)
    assert torch.equal(torch.get_rng_state(), before)  # a run goes on as if nothing was loaded
    assert not loaded.training
    assert_equal(loaded, encoder)

    first = (target / CARD).read_text()
    finished(tmp_path / "other", dataclasses.replace(GCN, hidden=4))
    write(tmp_path / "other", target)
    assert load_encoder(target).dim == 4
    write(tmp_path / "run", target)
    assert (target / CARD).read_text() == first
    assert list(target.parent.iterdir()) == [target]  # nothing is left beside it


def test_a_folder_with_other_files_is_not_replaced(tmp_path: Path) -> None:
    finished(tmp_path / "run")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("years of work")
    with pytest.raises(UserError, match=r"mine: holds thesis\.tex, which no export wrote; choose "):
        write(tmp_path / "run", tmp_path / "mine")
    (tmp_path / "file").write_text("a file")
    with pytest.raises(UserError, match="file: is a file; choose a folder with --to"):
        write(tmp_path / "run", tmp_path / "file")
    with pytest.raises(UserError, match="file/export: cannot be written"):
        write(tmp_path / "run", tmp_path / "file" / "export")
    assert {each.name for each in tmp_path.iterdir()} == {"run", "mine", "file"}
    assert (tmp_path / "mine" / "thesis.tex").read_text() == "years of work"


def test_a_failed_export_leaves_the_earlier_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder = finished(tmp_path / "run")
    target = write(tmp_path / "run", tmp_path / "export")

    def full(source: Path, target: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("shutil.copyfile", full)
    with pytest.raises(UserError, match=r"export: cannot be written \(No space left on device\)"):
        write(tmp_path / "run", target)
    assert_equal(load_encoder(target), encoder)
    assert {each.name for each in tmp_path.iterdir()} == {"run", "export"}


def edit_tensor(state: State, said: dict[str, str]) -> None:
    state["convs.0.bias"][0] += 1


def edit_shape(state: State, said: dict[str, str]) -> None:
    state["convs.0.bias"] = state["convs.0.bias"][:2].clone()


def rename(state: State, said: dict[str, str]) -> None:
    state["convs.9.bias"] = state.pop("convs.0.bias")


def drop(state: State, said: dict[str, str]) -> None:
    del state["convs.0.bias"]


def edit_metadata(state: State, said: dict[str, str]) -> None:
    said["readout"] = json.dumps("mean")  # the same parameters, another network


EDITS = [edit_tensor, edit_shape, rename, drop, edit_metadata]


@pytest.mark.parametrize("edit", EDITS)
def test_an_edited_file_is_refused_without_its_folder(
    tmp_path: Path, edit: Callable[[State, dict[str, str]], None]
) -> None:
    finished(tmp_path / "run")
    file = tmp_path / "run" / FILE
    state, said = load_file(file), metadata_of(file)
    edit(state, said)
    save_file(state, file, said)
    with pytest.raises(UserError, match=r"encoder\.safetensors: damaged or edited .*SHA-256"):
        load_encoder(file)
    with pytest.raises(UserError, match=r"encoder\.safetensors: damaged or edited .*SHA-256"):
        write(tmp_path / "run", tmp_path / "export")
    assert not (tmp_path / "export").exists()


def test_files_that_hold_no_weights_are_refused_in_one_line(tmp_path: Path) -> None:
    finished(tmp_path / "run")
    file = tmp_path / "run" / FILE
    with pytest.raises(UserError, match=r"metadata lack 'backbone'\); export a run of it"):
        load_images(file)
    content = file.read_bytes()
    file.write_bytes(content[: len(content) // 2])
    with pytest.raises(UserError, match=r"encoder\.safetensors: damaged or edited") as caught:
        load_encoder(file)
    assert "\n" not in str(caught.value)
    save_file({"weight": torch.zeros(1)}, file)
    with pytest.raises(UserError, match="not written by this domain's export"):
        load_encoder(file)
    with pytest.raises(UserError, match="there is no such file; give an exported folder or its"):
        load_encoder(tmp_path)


def test_another_network_than_the_configuration_s_is_not_saved(tmp_path: Path) -> None:
    encoder = make_encoder(GCN, 1)
    with pytest.raises(ValueError, match="this is not the network of the configuration"):
        save_encoder(
            encoder, tmp_path / "run", config=dataclasses.replace(GCN, hidden=7), features=1
        )
    assert not (tmp_path / "run").exists()


def test_runs_without_a_model_are_refused(tmp_path: Path) -> None:
    target = tmp_path / "export"
    with pytest.raises(UserError, match="not a finished run"):
        write(tmp_path / "nothing", target)
    finished(tmp_path / "smoke", tier="smoke")
    with pytest.raises(UserError, match="a smoke run only shows that the code runs"):
        write(tmp_path / "smoke", target)
    finished(tmp_path / "lost")
    (tmp_path / "lost" / FILE).unlink()
    with pytest.raises(UserError, match=r"encoder\.safetensors: the run has no such file"):
        write(tmp_path / "lost", target)
    finished(tmp_path / "foreign")
    set_config(tmp_path / "foreign", '{"backbone": "resnet18", "seed": 0}')
    with pytest.raises(UserError, match=r"trains no model of this domain .*with --domain"):
        write(tmp_path / "foreign", target)
    assert not target.exists()


def test_the_card_is_the_record_as_the_hub_reads_it(tmp_path: Path) -> None:
    finished(tmp_path / "run")
    text = (write(tmp_path / "run", tmp_path / "export") / CARD).read_text()
    said = ModelCard(text).data
    assert said.license == "mit"
    assert said.tags == ["contrastive-learning", "info_nce"]
    assert said.model_name == "gcn-atlas-info-nce"
    (result,) = said.eval_results
    assert (result.dataset_name, result.metric_name, result.metric_value) == (
        "atlas",
        "accuracy",
        61.5,
    )
    environment = json.loads((tmp_path / "run" / "environment.json").read_text())
    for part in (
        "An encoder of graphs (GCN), trained without labels on all graphs of atlas with\nthe loss "
        "`info_nce`: 3 epochs, batches of 64, seed 0.",
        "(tier `own`): its numbers cannot stand beside published ones",
        f"commit `{environment['commit']}`",
        f"- atlas: SHA-256 `{'5f' * 32}`",
        "Protocol `svm-10fold-nested-v1` on atlas, tier `own`",
        "in percent. The run is outside the tables: the protocol is the one that its configuration",
        "| accuracy | 61.50 |",
        "- graphs: 90",
        f"- `{FILE}`: SHA-256 `{sha256_of(tmp_path / 'export' / FILE)}`",
        (tmp_path / "run" / CONFIG).read_text(),
    ):
        assert part in text
    assert "low-rank projection" not in text


def test_the_card_tells_baselines_projections_and_the_paper_s_setting(tmp_path: Path) -> None:
    finished(tmp_path / "untrained", dataclasses.replace(GCN, train=False), tier="paper")
    text = (write(tmp_path / "untrained", tmp_path / "one") / CARD).read_text()
    assert "# gcn-atlas-untrained\n" in text
    assert "not trained at all, as initialised with seed 0: a baseline" in text
    assert "Trained in the paper's setting (tier `paper`)" in text
    assert not ModelCard(text).data.tags
    objective = Objective(term(info_nce, temperature=0.5), projection=Projection(0.1))
    finished(tmp_path / "projected", dataclasses.replace(GCN, objective=objective))
    text = (write(tmp_path / "projected", tmp_path / "two") / CARD).read_text()
    assert "the projection is not part of this file" in text
