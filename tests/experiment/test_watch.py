"""Scores during pretraining: where they are shown, and that nothing else depends on them."""

import dataclasses
import json
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import nn
from toy.train import Config, disturbing, measure

from shared.experiment.randomness import preserve_state
from shared.experiment.run import Run
from shared.experiment.run_folders import Interrupted
from shared.notices import notice

CELL = "toy/toy/table-1/plain/left/seed-0"
SLOW = pytest.mark.slow
TEXT = {"steps": 120, "tasks": ("neighbours",)}
# A row of a table's smoke tier for everything that is trained, changes that give its log several
# lines, and the names of scores.
CASES = {
    "vision": (
        "margins",
        "table-2-cifar10",
        "SimCLR",
        {"epochs": 2, "backbone": "resnet8"},
        {"knn_top1"},
    ),
    "vision, CMC": ("lmcl", "table-2-small", "CMC", {}, {"knn_top1"}),
    "vision, transfer": ("mmcl", "table-1-few-shot", "MMCL_INV", {}, {"knn_top1"}),
    "vision, toy": ("lmcl", "table-1", "LMCT, mean, normalised", {"steps": 250}, {"accuracy"}),
    "text": ("lmcl", "table-4", "QT", TEXT, {"next_sentence", "previous_sentence"}),
    "text, held out": ("cllr", "table-2-small", "QT", TEXT, {"next_sentence"}),
    "rl": ("lmcl", "table-5-state-probe", "CURL", {"probe_updates": 40}, {"r2"}),
    "graph": ("mmcl", "table-4", "GraphCL", {"epochs": 3}, {"accuracy"}),
    "video": ("mmcl", "table-5-small", "MoCo-v2", {}, {"R@1"}),
}
FAST = ("vision", "vision, toy", "rl")


def logged(folder: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]


def without(content: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in content.items() if name not in names}


def read(folder: Path, name: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((folder / name).read_text())
    return content


def assert_alike(first: Path, second: Path) -> None:
    """Two runs of a configuration differ in times alone, and in the lines of scores."""
    names = [{path.name for path in each.iterdir()} for each in (first, second)]
    timed = {"checkpoint.pt"}  # written by the clock
    assert names[0] - timed == names[1] - timed
    assert (first / "config.json").read_bytes() == (second / "config.json").read_bytes()
    for name, times in (
        ("environment.json", ("started", "command", "workers", "peak_device_memory_bytes")),
        ("result.json", ("seconds", "finished", "sha256", "peak_memory_bytes")),
    ):
        found = [without(read(each, name), *times) for each in (first, second)]
        for each in found:
            for entry in each.get("metrics", {}).get("details", {}).get("curve", ()):
                del entry["seconds"]
        assert found[0] == found[1]
    lines = [
        [without(line, "seconds", *(n for n in line if n.startswith("watch/"))) for line in each]
        for each in map(logged, (first, second))
    ]
    assert lines[0] == lines[1]
    for file in first.rglob("*.safetensors"):
        weights = [load_file(each / file.relative_to(first)) for each in (first, second)]
        assert weights[0].keys() == weights[1].keys()
        assert all(torch.equal(value, weights[1][name]) for name, value in weights[0].items())


RUNS = [each if each in FAST else pytest.param(each, marks=SLOW) for each in CASES]


def domain_and_config(name: str) -> tuple[Any, Any]:
    """The domain of a case, and the configuration of its row in the smoke tier."""
    paper, table, row, changes, _ = CASES[name]
    domain = import_module(f"{name.partition(',')[0]}.domain").DOMAIN
    (found,) = (
        each for each in domain.tables[paper] if each.name == table and "smoke" in each.tiers
    )
    return domain, dataclasses.replace(found.cells("smoke", row=row)[0].config, **changes)


@pytest.mark.parametrize("name", RUNS)
def test_a_watched_run_has_the_numbers_of_one_that_is_not(
    tmp_path: Path, built_data: Path, name: str
) -> None:
    scores = CASES[name][-1]
    domain_of, config = domain_and_config(name)
    shown: list[str] = []
    for watch in (None, 1):
        folder = tmp_path / f"watch {watch}"
        with Run(folder, config, data_root=built_data, watch=watch, show=shown.append) as run:
            run.finish(domain_of.measure(config, run))
    assert_alike(tmp_path / "watch None", tmp_path / "watch 1")

    lines = logged(tmp_path / "watch 1")
    tags = {f"watch/{score}" for score in scores}
    assert all(tags <= line.keys() for line in lines)
    assert len(shown) == len(lines)
    assert all("loss " in line and f"{min(tags)} " in line for line in shown)
    events = EventAccumulator(str(tmp_path / "watch 1" / "tensorboard")).Reload()
    for tag in tags:
        scalars = events.Scalars(tag)
        assert [event.step for event in scalars] == [line["step"] for line in lines]
        assert [event.value for event in scalars] == pytest.approx([line[tag] for line in lines])
    if len(lines) > 1:
        assert len({line[min(tags)] for line in lines}) > 1, "the encoder is trained in between"
    assert any((tmp_path / "watch 1").rglob("*.safetensors")) or "toy" in name


@SLOW
def test_an_agents_evaluations_are_shown(tmp_path: Path) -> None:
    from rl.domain import DOMAIN
    from rl.tables import TABLES

    (cell,) = TABLES["lmcl"][0].cells("smoke", row="CURL")
    shown: dict[int | None, list[str]] = {None: [], 1: [], 2: []}
    for watch, lines in shown.items():
        folder = tmp_path / f"watch {watch}"
        with Run(folder, cell.config, watch=watch, show=lines.append) as run:
            run.finish(DOMAIN.measure(cell.config, run))
    curve = read(tmp_path / "watch 1", "result.json")["metrics"]["details"]["curve"]
    assert [line.split(":")[0] for line in shown[1]] == [
        f"environment steps {entry['step']} of {cell.config.environment_steps}" for entry in curve
    ]
    assert shown[1][1::2] == shown[2]
    assert shown[None] == []
    assert_alike(tmp_path / "watch None", tmp_path / "watch 1")


def test_every_so_many_lines_and_after_the_last(tmp_path: Path) -> None:
    shown: list[str] = []
    with Run(tmp_path, Config(5), watch=2, show=shown.append) as run:
        run.finish(measure(run.config, run))
    assert [line["step"] for line in logged(tmp_path) if "watch/moved" in line] == [2, 4, 5]
    assert [line.split(":")[0] for line in shown] == [f"training {step} of 5" for step in (2, 4, 5)]
    for name in ("config.json", "environment.json", "result.json"):
        assert "moved" not in (tmp_path / name).read_text()


@pytest.mark.parametrize("watched", ["first", "last", "both"])
def test_stopped_and_resumed_a_watched_run_has_the_same_bits(tmp_path: Path, watched: str) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    with Run(whole, Config(5)) as run:
        run.finish(measure(run.config, run))
    with Run(parts, Config(5), watch=1 if watched != "last" else None) as run:
        for _ in range(2):
            run.stopping = True
            with pytest.raises(Interrupted):
                measure(run.config, run)
    with Run(parts, Config(5), watch=1 if watched != "first" else None) as run:
        run.finish(measure(run.config, run))
    assert_alike(whole, parts)


def test_a_score_leaves_no_trace_in_record_progress_or_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    now = [0.0]
    monkeypatch.setattr("shared.experiment.run.time.monotonic", lambda: now[0])
    with Run(tmp_path, Config(1), watch=1, progress=lambda *each: told.append(each[2])) as run:
        model = nn.Sequential(nn.BatchNorm1d(4), nn.Dropout())
        run.track(model=model)

        def score(**_: object) -> dict[str, float]:
            run.progress(0, 1, "neighbours")
            now[0] += 1000.0
            with pytest.warns(RuntimeWarning, match="of the score"):
                notice("of the score")
            return {"accuracy": 1.0}

        run.score = score
        for _ in run.steps(1, "training"):
            now[0] += 1.0
        with pytest.warns(RuntimeWarning, match="of the evaluation"):
            notice("of the evaluation")
        run.progress(1, 1, "evaluation")
        result = run.finish({"accuracy": 2.0})
    assert told == ["training", "evaluation"]
    assert read(tmp_path, "environment.json")["notices"] == ["of the evaluation"]
    assert result["seconds"] == 1.0
    assert result["metrics"] == {"accuracy": 2.0}


def test_modes_buffers_and_generators_are_as_they_were_even_after_an_error() -> None:
    model = nn.Sequential(nn.BatchNorm1d(4), nn.Sequential(nn.Dropout(), nn.Linear(4, 4)))
    model.train()[1][0].eval()
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    before = {name: value.clone() for name, value in model.state_dict().items()}

    def disturb() -> None:
        with preserve_state(model):
            model.train()(torch.randn(8, 4) + 3)
            model.eval()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        disturb()
    assert [part.training for part in model.modules()] == [True, True, True, False, True]
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert torch.equal(torch.rand(2), expected)


def test_the_toy_score_disturbs_what_it_can_reach(tmp_path: Path) -> None:
    """Without this the tests above would hold a score that changes nothing."""
    with Run(tmp_path, Config(1)) as run:
        metrics = measure(run.config, run)
        model = run._tracked["model"]
        assert isinstance(model, nn.Module)
        means, drawn = model.layers[1].running_mean.clone(), torch.get_rng_state()
        disturbing(model)
        assert not torch.equal(model.layers[1].running_mean, means)
        assert not torch.equal(torch.get_rng_state(), drawn)
        assert not model.training
    assert metrics
