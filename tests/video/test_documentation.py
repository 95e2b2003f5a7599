"""The code of docs/video.md, run from top to bottom."""

from pathlib import Path

import pytest

from tests.stages.pages import run_page


def test_the_code_of_the_documentation_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    names = run_page("video.md")
    assert names["first"].shape == (8, 3, 8, 32, 32)
    assert names["flow"].shape[0] == 3
    assert (names["flow"][..., 2] == 128).all()
    assert names["loss"].requires_grad
    assert 0 <= names["result"]["metrics"]["top1"] <= 100
    assert names["colour"]["top1_low"] <= names["colour"]["top1"] <= names["colour"]["top1_high"]
    assert 0 <= names["tuned"]["top1"] <= 100
    assert names["vectors"].shape == (8, names["encoder"].dim)
    assert Path("exports/own/SHA256SUMS").is_file()
