"""The domain of docs/examples works as docs/own.md says."""

import json
from pathlib import Path

import pytest
from toy.program import AtOnce

from shared.command import cells

EXAMPLES = Path(__file__).resolve().parents[2] / "docs/examples"


@pytest.mark.slow
def test_the_domain_of_the_examples_runs(
    tmp_path: Path, at_once: AtOnce, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(EXAMPLES)
    monkeypatch.setattr(cells, "DOMAINS", (*cells.DOMAINS, "arrows"))
    out, _ = at_once("plan", "arrows", "mine")
    assert "arrows/mine/table-1: Arrows" in out
    at_once("arrows", "mine", "--column", "noise 0.4", "--seeds", "0,1")
    finished = list((tmp_path / "runs/arrows").glob("*/*-seed-0-*/result.json"))
    assert len(finished) == 2
    for file in finished:
        # Far above chance, one in eight, and not perfect: there is something to learn and to miss.
        assert 40 < json.loads(file.read_text())["metrics"]["accuracy"] < 99, file
        lines = file.with_name("log.jsonl").read_text().splitlines()
        losses = [json.loads(line)["loss"] for line in lines]
        assert losses[-1] < losses[0] - 0.1, file
    assert "arrows draws no figures" in at_once("figures", "arrows", "mine", code=2)[1]
    address = "arrows/mine/table-1/infonce/noise-0-4/seed-0"
    assert "arrows exports no models" in at_once("export", address, code=2)[1]
