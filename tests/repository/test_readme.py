"""What README and the documents say works: their commands are accepted, their code runs."""

import math
import re
import shlex
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from shared import cosine, info_nce, two_views
from shared.command import cells, reproduce, verbs
from shared.command.cells import Places, tables_of
from shared.command.own import load_loss
from shared.command.settings import with_settings
from shared.command.verbs import whole_frame, write_results
from shared.errors import UserError
from shared.experiment.frame import Frame
from shared.report.claims import ITERATIONS, SHARES
from shared.report.pages import BEGINS, ENDS, Results, in_short, write_in_short
from shared.report.pictures import shown_by

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
OWN = (ROOT / "docs/own.md").read_text(encoding="utf-8")
PAGES = {page: page.read_text(encoding="utf-8") for page in sorted((ROOT / "docs").glob("*.md"))}
PAGES[ROOT / "README.md"] = README
FENCES = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
INLINE = re.compile(r"`\./reproduce\.sh ([^`]+)`")
PLACEHOLDER = re.compile(r"\.\.\.|\b(ADDRESS|DOMAIN|PAPER)\b|^arrows ")


def commands_of(text: str) -> list[str]:
    """The calls of reproduce.sh on a page, without their comments."""
    shells = [block for language, block in FENCES.findall(text) if language in ("", "bash")]
    lines = [
        re.split(r"  #| >", line)[0]
        for block in shells
        for line in block.replace("\\\n", " ").splitlines()
    ]
    found = [line.removeprefix("./reproduce.sh ") for line in lines if line.startswith("./repro")]
    found += INLINE.findall(FENCES.sub("", text))
    return [" ".join(each.split()) for each in found if not PLACEHOLDER.search(each)]


COMMANDS = sorted({command for text in PAGES.values() for command in commands_of(text)})
BLOCKS = re.findall(r"```python\n(.*?)```", OWN.partition("## A domain\n")[0], re.DOTALL)
LOSS, REGULARISED, *CODE = BLOCKS


def test_there_is_something_to_check() -> None:
    assert {"graph mmcl --tier smoke", "test"} <= set(COMMANDS)
    assert len(COMMANDS) > 40
    assert LOSS.startswith("# losses.py\n")
    assert (ROOT / "docs/examples/losses.py").read_text(encoding="utf-8") == LOSS
    assert len(CODE) == 1


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_is_accepted(
    command: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """As far as can be told without its work; what the work gives is tested with the verb."""
    words = shlex.split(command)
    verb = words[0]
    runs = ["--runs", str(tmp_path)]
    # Verbs that lack what they work on say so, in place of that an option is unknown.
    lacking = {
        "evaluate": "error: ",
        "export": "error: ",
        "film": "error: there is no policy to film",
    }
    if verb in ("test", "benchmark", "docs"):
        assert f"\n  {verb}) " in (ROOT / "reproduce.sh").read_text().replace(")\n", ") \n")
    elif verb == "data":
        assert words[1] in cells.DOMAINS
        if words[-1] == "--prepare":
            assert cells.domain_of(words[1]).prepare is not None
            words = words[:-1]
        if words[2:]:
            assert words[2] == "--dataset"
            assert words[3:] in [[each] for each in cells.domain_of(words[1]).datasets()]
    elif verb == "figures":
        assert cells.domain_of(words[1]).figures is not None
        assert words[2:] in [[each] for each in tables_of(words[1])]
    elif verb in lacking:
        assert reproduce.main([*words, *runs]) == 2
        error = capsys.readouterr().err
        assert error.startswith(lacking[verb])
        assert "no option" not in error
    elif verb == "verify":
        words = words[: words.index("--rerun")] if "--rerun" in words else words
        monkeypatch.setattr(verbs, "_outdated_pages", lambda places: [])  # below, it does its work
        assert reproduce.main([*words, *runs]) == 0
    elif verb == "report":
        assert reproduce.main([*words, "--results", str(tmp_path), *runs]) == 0
    elif "--data" in words:  # what is yours is not there; tests/command/test_compare.py has some
        assert reproduce.main([*words, *runs]) == 2
        assert "there is no such file or folder" in capsys.readouterr().err
    else:
        check_run(words[1:] if verb in ("plan", "run") else words, tmp_path)
        # Where the records are of this kind of processor, a comparison has nothing left to run.
        said = "".join(capsys.readouterr())
        assert re.search(r" cells? | (\d+) of \1 runs there\n", said)


def check_run(words: list[str], tmp_path: Path) -> None:
    """Plan what a command runs, after a look at its own settings and loss, which no plan takes."""
    start = ["plan"] + ["compare"] * (words[0] == "compare")
    words = words[len(start) - 1 :]
    while options := {"--set", "--with"} & set(words):
        at = words.index(options.pop())
        option, value = words[at : at + 2]
        words = words[:at] + words[at + 2 :]
        if option == "--set" and value.startswith("init="):
            assert hasattr(tables_of(words[0])[words[1]][0].config, "init")
        elif option == "--set":
            assert with_settings(tables_of(words[0])[words[1]][0].config, [value])
        else:
            (tmp_path / "losses.py").write_text(LOSS)
            path, name = value.split(",")[0].split(":")
            file = (ROOT if (ROOT / path).exists() else tmp_path) / path
            assert load_loss(file, name, value.split(",")[1:])
            sys.modules.pop("losses")
            sys.path.remove(str(file.parent))
    assert reproduce.main([*start, *words, "--runs", str(tmp_path)]) == 0


def test_a_loss_may_hold_a_regulariser(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "regularised.py").write_text(REGULARISED)
    pairs = two_views(*0.3 * torch.randn(2, 5, 4))
    similarity = cosine(pairs.anchor, pairs.candidate)
    values = {
        strength: load_loss(tmp_path / "regularised.py", "regularised", [f"strength={strength}"])(
            pairs, similarity
        )
        for strength in ("0", "2")
    }
    sys.modules.pop("regularised")
    torch.testing.assert_close(values["0"], info_nce(pairs, similarity, temperature=0.5))
    added = 2 * (1 - pairs.anchor.std(0)).relu().mean()
    assert added > 0
    torch.testing.assert_close(values["2"], values["0"] + added)


@pytest.mark.slow
@pytest.mark.parametrize("code", CODE, ids=lambda code: code.partition("\nimport ")[2][:20])
def test_every_domain_takes_what_is_yours(
    code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(compile(code, "own.md", "exec"), names)
    if "images" in names:
        assert names["features"].shape == (64, 512)
        assert names["features"].isfinite().all()
    else:
        assert -100 < float(capsys.readouterr().out) <= 100


def test_the_loss_of_the_first_page_has_gradients_to_look_at() -> None:
    names: dict[str, Any] = {}
    (code,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    exec(compile(code, "README.md", "exec"), names)
    assert names["first"].grad.norm() > 0
    assert names["second"].grad.norm() > 0


def test_losses_work_as_shown(capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, Any] = {}
    page = PAGES[ROOT / "docs/losses.md"]
    for code in re.findall(r"```python\n(.*?)```", README + page, re.DOTALL):
        exec(compile(code, "losses.md", "exec"), names)
    assert math.isfinite(names["loss"].item())
    assert {"hard_nce", "distance_polarization", "projection_norm"} <= set(names["parts"])
    assert names["each"].shape == (512,)
    assert names["pairs"].negative.sum(1).tolist() == [4, 6, 4, 6] * 2
    assert names["encoder"].weight.grad.isfinite().all()


def test_links_pictures_and_paths_exist() -> None:
    for page, text in PAGES.items():
        for link in re.findall(r"\]\((?!http)([^)#]+)", text):
            if link.startswith("../../actions/workflows/"):  # of the code host
                link = f".github/workflows/{link.split('/')[4]}"
            assert (page.parent / link).exists(), (page.name, link)
        folders = "shared|graph|rl|text|video|vision|tests|benchmarks|tools|results|docs"
        for path in re.findall(rf"`((?:{folders})/[\w./-]*)`", text):
            known = (ROOT / path).exists() or "PAPER" in path or path.startswith("docs/numerics")
            assert known, (page.name, path)


MEASURED = (SHARES, ITERATIONS, "tuning.json")  # by tools


@pytest.mark.slow
def test_the_committed_results_are_what_the_records_give(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Pages, CSV files and the README's lines; a picture says itself what it shows."""
    results = tmp_path / "results"
    shutil.copytree(ROOT / "results", results)
    written = [each for each in results.rglob("*") if each.suffix in (".md", ".csv", ".json")]
    written = [each for each in written if each.name not in MEASURED]
    for file in written:
        if file.parent.name != "figures":
            file.unlink()
    for file in (each for each in results.rglob("*.png") if each.parent.name != "figures"):
        assert shown_by(file), file
    told = {file: shown_by(file) for file in results.rglob("*.png")}
    places = Places(tmp_path / "runs", results, tmp_path / "data")
    found = write_results(places, whole_frame(places))
    for file in written:
        committed = (ROOT / "results" / file.relative_to(results)).read_text(encoding="utf-8")
        assert file.read_text(encoding="utf-8") == committed, file
    assert {file: shown_by(file) for file in results.rglob("*.png")} == told
    assert f"{BEGINS}\n{in_short(found, 'results/')}{ENDS}" in README

    # The verb that compares them finds the same, given what was written above in place of its own.
    asked: list[Places] = []

    def copied(places: Places, _: Frame, *, to: Path) -> None:
        asked.append(places)
        shutil.copytree(results, to)

    monkeypatch.setattr(verbs, "write_results", copied)
    assert reproduce.main(["verify", "--pages", "--runs", str(tmp_path)]) == 0
    assert [places.results.resolve() for places in asked] == [ROOT / "results"]
    assert "no fault found" in capsys.readouterr().out


def test_a_document_without_the_marks_is_refused(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("# A title\n")
    with pytest.raises(UserError, match="has no lines <!-- claims"):
        write_in_short(tmp_path / "README.md", Results((), ()))
