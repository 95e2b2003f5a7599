"""The domain that docs/own.md makes works as the page says."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs/own.md").read_text(encoding="utf-8").partition("## A domain\n")[2]
FILES = re.findall(r"^`([\w/.]+\.py)`:\n\n```python\n(.*?)```", PAGE, re.DOTALL | re.MULTILINE)


def call(folder: Path, *arguments: str, code: int = 0) -> str:
    program = (
        "import sys; from shared.command import cells, reproduce; "
        "cells.DOMAINS += ('arrows',); sys.exit(reproduce.main())"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{folder}", "COLUMNS": "120"},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == code, f"{done.stdout}\n{done.stderr}"
    return done.stdout + done.stderr


@pytest.mark.slow
def test_the_domain_of_the_page_runs(tmp_path: Path) -> None:
    assert PAGE.count("```python") == len(FILES) == 4
    for name, text in FILES:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    out = call(tmp_path, "plan", "arrows", "mine")
    assert "arrows/mine/table-1: Arrows" in out
    call(tmp_path, "arrows", "mine", "--column", "noise 0.4", "--seeds", "0,1")
    finished = list((tmp_path / "runs/arrows").glob("*/*-seed-0-*/result.json"))
    assert len(finished) == 2
    for file in finished:
        # Far above chance, one in eight, and not perfect: there is something to learn and to miss.
        assert 40 < json.loads(file.read_text())["metrics"]["accuracy"] < 99, file
        losses = [json.loads(line)["loss"] for line in file.with_name("log.jsonl").open()]
        assert losses[-1] < losses[0] - 0.1, file
    assert "arrows draws no figures" in call(tmp_path, "figures", "arrows", "mine", code=2)
    address = "arrows/mine/table-1/infonce/noise-0-4/seed-0"
    assert "arrows exports no models" in call(tmp_path, "export", address, code=2)
