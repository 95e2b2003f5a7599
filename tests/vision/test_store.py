"""Pretrained encoders that runs share: what is shared, and that sharing changes no number."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from shared import Objective, Projection, info_nce, term
from shared.experiment.initial import FILE
from shared.experiment.run import Run
from shared.experiment.store import FACT, SAVED, encoder_key, part_of
from tests.stages.training import spied, stop
from vision import train
from vision.config import EVALUATION, PRETRAINING, Config
from vision.export import load_encoder
from vision.train import measure

DIGITS = dataclasses.replace(
    Config().reduced(), backbone="resnet8", stem="strided", epochs=2, learning_rate=0.01
)
EPISODES: dict[str, Any] = {"protocol": "few-shot-5way-5shot-v1"}
CLLR = Objective(
    term(info_nce, temperature=0.25), (), Projection(0.1, {"norm": "nuclear", "alpha": 0.1})
)


def finish(
    root: Path, name: str, config: Config, *, shared: bool = True, tier: str = "smoke"
) -> Any:
    kept = root / "encoders" if shared else None
    with Run(root / name, config, tier=tier, store=kept) as run:
        metrics = run.finish(measure(config, run))["metrics"]
    facts = json.loads((root / name / "environment.json").read_text()).get("facts", {})
    return metrics, facts


def entries(root: Path) -> list[Path]:
    return [path for path in sorted((root / "encoders").iterdir()) if path.is_dir()]


def test_pretraining_settings_alone_change_the_key() -> None:
    def key(config: Config) -> str:
        return encoder_key(part_of(config, PRETRAINING))

    changed = {
        name
        for name in (*PRETRAINING, *EVALUATION)
        if key(dataclasses.replace(Config(), **{name: "another"})) != key(Config())
    }
    assert changed == set(PRETRAINING)


SLOW = pytest.mark.slow
CMC = {"method": "cmc", "statistics": "none", "head_layers": 1, "queue": 20}


@pytest.mark.parametrize(
    ("changes", "evaluation"),
    [
        ({"objective": CLLR}, {"protocol": "linear-l2-v1", "projection_dimensions": 3}),
        pytest.param(CMC, EPISODES, marks=SLOW),
        pytest.param({"epochs": 0, "calibrated": True}, EPISODES, marks=SLOW),
    ],
    ids=["cllr", "cmc", "untrained"],
)
def test_a_shared_encoder_gives_the_same_numbers(
    tmp_path: Path,
    changes: dict[str, Any],
    evaluation: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first = dataclasses.replace(DIGITS, **changes)
    both = first, dataclasses.replace(first, **evaluation)
    alone = [finish(tmp_path, f"alone-{n}", each, shared=False)[0] for n, each in enumerate(both)]
    trained = spied(monkeypatch, train, "pretrain", lambda *_, **__: None)
    shared = []
    for number, each in enumerate(both):
        metrics, facts = finish(tmp_path, f"shared-{number}", each)
        shared.append(metrics)
        assert [entry.name for entry in entries(tmp_path)] == [facts[FACT]]
        assert (SAVED in facts) is (number > 0)
    assert shared == alone
    assert not [*tmp_path.glob(f"*-?/{FILE}")]  # the smoke tier keeps no encoders
    assert len(trained) == 1
    if first.epochs:
        logs = [tmp_path / f"shared-{number}" / "log.jsonl" for number in range(2)]
        assert logs[0].read_text() == logs[1].read_text()


def test_the_entry_says_what_it_is_and_the_run_has_the_encoder(tmp_path: Path) -> None:
    _, facts = finish(tmp_path, "one", DIGITS, tier="own")
    (entry,) = entries(tmp_path)
    said = json.loads((entry / "record.json").read_text())
    assert (said["key"], facts.pop(FACT)) == (entry.name, entry.name)
    assert facts.keys() == {"effective_rank"}
    assert said["config"] == part_of(DIGITS, PRETRAINING)
    assert said["data"]["images"] == 96
    assert said["seconds"] > 0
    assert {"commit", "dirty", "arithmetic", "finished", "notices"} <= said.keys()
    load_encoder(tmp_path / "one")
    assert (tmp_path / "one" / FILE).samefile(entry / FILE)
    assert not (tmp_path / "one" / "checkpoint.pt").exists()
    finish(tmp_path, "two", dataclasses.replace(DIGITS, **EPISODES), tier="own")
    assert (tmp_path / "two" / FILE).samefile(entry / FILE)


@pytest.mark.slow
def test_a_run_that_stops_leaves_no_entry_and_goes_on(tmp_path: Path) -> None:
    whole, _ = finish(tmp_path, "whole", DIGITS, shared=False)
    stop(tmp_path / "parts", DIGITS, measure, tier="smoke", store=tmp_path / "encoders")
    assert entries(tmp_path) == []
    assert (tmp_path / "parts" / "checkpoint.pt").exists()
    # Another trains it in the meantime; the checkpoint then serves no more.
    finish(tmp_path, "other", dataclasses.replace(DIGITS, **EPISODES))
    metrics, facts = finish(tmp_path, "parts", DIGITS)
    assert metrics == whole
    assert SAVED in facts
    assert not (tmp_path / "parts" / "checkpoint.pt").exists()
