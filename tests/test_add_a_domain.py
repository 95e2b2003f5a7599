"""The domain that docs/add-a-domain.md makes works as the page says."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs/add-a-domain.md").read_text(encoding="utf-8")
FILES = dict(
    re.findall(r"^`([\w/.]+\.py)`:\n\n```python\n(.*?)```", PAGE, re.DOTALL | re.MULTILINE)
)


def call(folder: Path, *arguments: str, code: int = 0) -> str:
    program = (
        "import sys; from shared.command import domains, reproduce; "
        "domains.DOMAINS += ('arrows',); sys.exit(reproduce.main())"
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


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        if name.startswith("arrows/"):
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).write_text(text)
    return tmp_path


def test_every_block_has_its_file() -> None:
    assert sorted(FILES) == [
        *(f"arrows/{name}.py" for name in ("__init__", "config", "tables", "train")),
        "tests/toy/__init__.py",
    ]
    assert PAGE.count("```python") == len(FILES)


def test_the_quoted_front_is_the_toy_domains() -> None:
    name = "tests/toy/__init__.py"
    assert FILES[name] == (ROOT / name).read_text(encoding="utf-8")


@pytest.mark.slow
def test_the_domain_of_the_page_runs(folder: Path) -> None:
    out = call(folder, "arrows", "mine", "--plan")
    assert "arrows/mine/table-1: Arrows" in out
    out = call(folder, "arrows", "mine", "--column", "noise 0.4", "--seeds", "0,1")
    finished = [file.parent for file in (folder / "runs/arrows").glob("*/*-seed-0-*/result.json")]
    results = [json.loads((each / "result.json").read_text()) for each in finished]
    accuracies = {
        each.name.partition("-seed-")[0]: result["metrics"]["accuracy"]
        for each, result in zip(finished, results, strict=True)
    }
    assert len(accuracies) == 2
    # Far above chance, one in eight, and not perfect: there is something to learn and to miss.
    assert all(40 < each < 99 for each in accuracies.values()), accuracies
    (log,) = (each / "log.jsonl" for each in finished if each.name.startswith("info-nce-"))
    losses = [json.loads(line)["loss"] for line in log.read_text().splitlines()]
    assert len(losses) == 30
    assert losses[-1] < losses[0] - 0.1
    assert "arrows draws no figures" in call(folder, "arrows", "mine", "--figures", code=2)
    assert "arrows exports no models" in call(
        folder, "export", "arrows/mine/table-1/infonce/noise-0-4/seed-0", code=2
    )
