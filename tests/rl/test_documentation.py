"""The code of docs/rl.md, run from top to bottom."""

from pathlib import Path

import pytest
import torch

from tests.stages.pages import run_page


@pytest.mark.slow
def test_the_code_of_the_documentation_runs(
    tmp_path: Path, built_data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "data").symlink_to(built_data)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    names = run_page("rl.md")
    assert names["names"][0] == "position[0]"
    assert names["batch"].positive.shape == (8, 9, 32, 32)
    assert names["latent"].shape == (8, 16)
    assert len(names["sums"]) == 2
    assert len(set(names["sums"])) == 2  # each episode has a seed of its own
    assert {"r2", "r2_position", "r2_velocity", "details"} == names["score"].keys()
    assert [each["step"] for each in names["pendulum"]["metrics"]["details"]["curve"]] == [160, 320]
    assert names["contrast"].encoder(names["batch"].positive).shape == (8, 16)
    # What was exported acts; the agent above it was another one.
    assert names["action"].shape == (1, 1)
    assert not torch.equal(names["action"], names["agent"].act(names["observation"], sample=False))
    steps = [line.split(",")[2] for line in Path("runs/swingup/curve.csv").read_text().split()[1:]]
    assert steps == ["160", "320"]
