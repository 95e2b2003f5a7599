"""What the README and the pages of use say works: their commands are accepted, their code runs."""

import math
import re
import shlex
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from shared.command import domains, reproduce
from shared.command.domains import tables_of
from shared.command.own import load_loss
from shared.command.places import Places
from shared.command.settings import with_settings
from shared.command.verbs import write_results
from shared.errors import UserError
from shared.report.pictures import shown_by
from shared.report.summary import BEGINS, ENDS, Results, in_short, write_in_short

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md"]
PAGES += [ROOT / "docs" / f"{name}.md" for name in ("start", "tables", "clusters")]
PAGES += [ROOT / "docs/losses.md", ROOT / "docs/own.md"]
README = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)
COMMANDS = sorted(
    {
        line.split("#")[0].strip().removeprefix("./reproduce.sh ")
        for block in re.findall(r"```bash\n(.*?)```", README, re.DOTALL)
        for line in block.splitlines()
        if line.startswith("./reproduce.sh ")
    }
)
BLOCKS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
LOSSES = [block for block in BLOCKS if block.startswith("# my_losses.py\n")]
CODE = [block for block in BLOCKS if block not in LOSSES]


def test_there_is_something_to_check() -> None:
    assert "graph mmcl --tier smoke" in COMMANDS
    assert "test" in COMMANDS
    assert len(COMMANDS) >= 7
    assert len(CODE) == 5
    assert len(LOSSES) == 1


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_is_accepted(
    command: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    words = shlex.split(command)
    if words[0] == "noise":  # starts the rest again for each choice; tests/test_evidence.py
        words = words[1:]
    if words[0] == "test":
        assert 'if [ "${1:-}" = test ]' in (ROOT / "reproduce.sh").read_text()
    elif words[0] == "benchmark":
        assert 'if [ "${1:-}" = benchmark ]' in (ROOT / "reproduce.sh").read_text()
    elif words[0] == "docs":
        assert 'if [ "${1:-}" = docs ]' in (ROOT / "reproduce.sh").read_text()
    elif words[0] == "data":
        assert words[1] in domains.DOMAINS
    elif words[0] == "figures":
        assert domains.domain_of(words[1]).figures is not None
        assert words[2] in domains.tables_of(words[1])
    elif words[0] == "explain":
        assert reproduce.main([*words, "--runs", str(tmp_path)]) == 0
        assert "Records: " in capsys.readouterr().out
    elif words[0] == "film":
        assert reproduce.main([*words, "--runs", str(tmp_path)]) == 2
        assert "no finished run" in capsys.readouterr().err
    elif words[0] == "evaluate":
        assert reproduce.main(words) == 2
        assert capsys.readouterr().err.startswith("error: unknown dataset 'pets'")
    elif words[0] == "export":
        assert reproduce.main([*words, "--runs", str(tmp_path)]) == 2
        assert capsys.readouterr().err.startswith(f"error: no run '{words[1]}'")
    elif words[0] == "verify":  # what --rerun does is tested with the toy domain
        words = words[: words.index("--rerun")] if "--rerun" in words else words
        assert reproduce.main([*words, "--runs", str(tmp_path)]) == 0
    elif words[0] == "status":
        assert reproduce.main([*words, "--runs", str(tmp_path)]) == 2
        assert capsys.readouterr().err.startswith("error: nothing was submitted from ")
    elif "--processes" in words:  # what these do is tested in tests/test_processes.py
        assert reproduce.main([*words[:-1], "7", "--runs", str(tmp_path)]) == 2
        assert "cannot be divided among 7 processes" in capsys.readouterr().err
    elif "--slurm" in words:  # what these do is tested in tests/slurm
        assert reproduce.main([*words, "--time", "nonsense", "--runs", str(tmp_path)]) == 2
        assert "is not a positive number" in capsys.readouterr().err
    elif words[0] == "report":
        assert reproduce.main([*words, "--results", str(tmp_path), "--runs", str(tmp_path)]) == 0
    else:
        words = words[1:] if words[0] == "plan" else words
        while "--set" in words or "--with" in words:  # what is not planned
            at = words.index("--set" if "--set" in words else "--with")
            option, value = words[at : at + 2]
            words = words[:at] + words[at + 2 :]
            if option == "--set":
                assert with_settings(tables_of(words[0])[words[1]][0].config, [value])
            else:
                (tmp_path / "my_losses.py").write_text(LOSSES[0])
                file, name = value.split(",")[0].split(":")
                assert load_loss(tmp_path / file, name, value.split(",")[1:])
                sys.modules.pop("my_losses")
                sys.path.remove(str(tmp_path))
        assert reproduce.main(["plan", *words, "--runs", str(tmp_path)]) == 0
        assert " cells " in capsys.readouterr().out


@pytest.mark.parametrize("code", CODE)
def test_every_example_runs(
    code: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(compile(code, "README.md", "exec"), names)
    if "features" in names:
        assert names["features"].shape == (64, 512)
        assert names["features"].isfinite().all()
    elif "loss" in names:
        assert math.isfinite(names["loss"].item())
        assert {"hard_nce", "distance_polarization", "projection_norm"} <= set(names["parts"])
    elif "metrics" in names:
        shown = float(capsys.readouterr().out)
        assert shown == names["metrics"]["r2_position"]
        assert -100 < shown < 100
    else:
        assert 0 < float(capsys.readouterr().out) <= 100


def test_pictures_and_paths_exist() -> None:
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for path in re.findall(r"\]\((?!http)([^)#]+)\)|<img src=\"([^\"]+)\"", text):
            assert (page.parent / (path[0] or path[1])).exists(), path
    for path in re.findall(
        r"`((?:shared|graph|rl|text|video|vision|tests|benchmarks|results)/[\w./-]*)`", README
    ):
        assert (ROOT / path).exists(), path


@pytest.mark.slow
def test_the_committed_results_are_what_the_records_give(tmp_path: Path) -> None:
    """Pages, CSV files and the README's lines; a picture says itself what it shows."""
    results = tmp_path / "results"
    shutil.copytree(ROOT / "results", results)
    written = [each for each in results.rglob("*") if each.suffix in (".md", ".csv", ".json")]
    for file in written:
        if file.parent.name != "figures":
            file.unlink()
    for file in (each for each in results.rglob("*.png") if each.parent.name != "figures"):
        assert shown_by(file), file
    told = {file: shown_by(file) for file in results.rglob("*.png")}
    found = write_results(Places(tmp_path / "runs", results, tmp_path / "data"))
    for file in written:
        committed = (ROOT / "results" / file.relative_to(results)).read_text(encoding="utf-8")
        assert file.read_text(encoding="utf-8") == committed, file
    assert {file: shown_by(file) for file in results.rglob("*.png")} == told
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert f"{BEGINS}\n{in_short(found, 'results/')}{ENDS}" in text
    assert text.index("(results/README.md)") < text.index("```")


def test_a_document_without_the_marks_is_refused(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("# A title\n")
    with pytest.raises(UserError, match="has no lines <!-- claims"):
        write_in_short(tmp_path / "README.md", Results((), ()))
