"""Rows beside rows: a comparison, what stands in for its runs, and the folder it is written to."""

import csv
import json
import re
import shutil
import sys
from argparse import Namespace
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from PIL import Image
from scipy.stats import ttest_ind
from torch_geometric.data import Data, InMemoryDataset
from toy.program import AtOnce

import graph.own
from graph.tables import TABLE_4
from shared.command import compare as command
from shared.errors import UserError
from shared.experiment.records import Record, content_hash, record_line
from shared.experiment.run_folders import is_locked
from shared.experiment.tables import Column
from shared.report.comparison import (
    Comparison,
    ComparisonRow,
    Number,
    NumberOrigin,
    budget,
    cost_grid,
    headline,
    latex,
    learning,
    markdown,
    remarks,
    write,
)
from shared.report.statistics import holm
from shared.report.wording import POST_HOC_NOTE
from tests.stages.pages import fault_of_latex

# InfoNCE without the positive in the denominator, which GraphCL's row trains with.
LOSS = '''\
def mine(pairs, similarity, *, temperature: float = 0.2):
    """GraphCL's loss, written by hand."""
    scores = similarity / temperature
    count = pairs.positive.sum(1)
    positives = (scores * pairs.positive).sum(1) / count.clamp(min=1)
    negatives = scores.masked_fill(~pairs.negative, float("-inf")).logsumexp(1)
    return (negatives - positives).where(count > 0, 0.0)
'''
SMOKE = ("compare", "graph", "mmcl", "--table", "4", "--tier", "smoke")
ENVIRONMENT = {
    "commit": "391a9aa" + 33 * "0",
    "dirty": False,
    "command": "./reproduce.sh",
    "started": "2026-11-25T10:00:00+00:00",
    "versions": {"torch": "2.13.0"},
    "hardware": {"system": "Linux", "processor": "AMD EPYC", "cores": 2, "memory_bytes": 1},
    "data": {"MUTAG": "0" * 64},
}


def edited(file: Path, text: str) -> None:
    file.write_text(text)
    sys.modules.pop(file.stem, None)


def record(address: str, value: float, **others: object) -> Record:
    config = {"objective": None, "epochs": 20, "seed": 0}
    result = {
        "metrics": {"accuracy": value, **others},
        "protocol": "svm-10fold-nested-v1",
        "tier": "paper",
        "seconds": 3.0,
        "peak_memory_bytes": 10**9,
    }
    return Record(address, config, ENVIRONMENT, result, content_hash(config, ENVIRONMENT, result))


def number(label: str, values: dict[int, float]) -> Number:
    sources = {s: NumberOrigin(record(f"{label}/{s}", v), "run here") for s, v in values.items()}
    return Number("accuracy", "%", sources)


VALUES = {
    "plain": {0: 70.0, 1: 71.0, 2: 70.5, 3: 70.2},
    "up": {0: 80.0, 1: 81.0, 2: 80.7, 3: 80.1},
    "same": {0: 70.9, 1: 69.8, 2: 70.8, 3: 70.1},
    "single": {0: 99.0},
    "below & 5%_": {0: 60.0, 1: 61.0, 2: 60.5, 3: 60.4},
}


def comparison(**others: object) -> Comparison:
    made = Comparison(
        "graph/mmcl/table-4",
        "Graphs",
        "paper",
        (),
        "MUTAG",
        "svm-10fold-nested-v1",
        "plain",
        tuple(map(ComparisonRow, VALUES)),
        (Column("MUTAG"),),
        {(label, "MUTAG"): number(label, some) for label, some in VALUES.items()},
    )
    return replace(made, **others)  # type: ignore[arg-type]


def test_every_row_is_compared_by_the_judge_of_claims_in_one_family() -> None:
    found = comparison()
    assert {label: found.word(label, "MUTAG") for label in VALUES} == {
        "plain": "",
        "up": "better",
        "same": "undecided",
        "single": "undecided (too few seeds)",
        "below & 5%_": "worse",
    }
    tested = ("up", "same", "below & 5%_")
    p_values = [
        ttest_ind([*VALUES[label].values()], [*VALUES["plain"].values()], equal_var=False).pvalue
        for label in tested
    ]
    gains = [found.gains[label, "MUTAG"] for label in tested]
    assert [gain.p for gain in gains] == pytest.approx(p_values)
    assert [min(gain.adjusted) for gain in gains] == pytest.approx(holm(p_values))
    single = found.gains["single", "MUTAG"]
    assert single.estimate.gain == pytest.approx(99.0 - 70.425)
    assert single.p is None


def test_a_row_all_of_whose_seeds_failed_reads_failed() -> None:
    lacking = {
        "same": Number("accuracy", "%", {}, {0: "failed: no memory", 1: "not run"}),
        "up": Number("accuracy", "%", {}, {0: "not run", 1: "not run: data missing; fetch it"}),
    }
    numbers = comparison().numbers | {(label, "MUTAG"): each for label, each in lacking.items()}
    found = comparison(numbers=numbers)
    assert found.word("same", "MUTAG") == "failed"
    assert found.word("up", "MUTAG") == "not run"
    other = comparison(numbers=numbers, against="same")
    assert other.word("same", "MUTAG") == "failed"
    assert other.word("single", "MUTAG") == "undecided (same has no number)"


def test_seeds_that_differ_between_rows_and_seeds_that_failed_are_named() -> None:
    text = "seeds 0-3 (plain; up; same; below & 5%_) and seed 0 (single)"
    assert f"mean ± standard deviation over {text}." in headline(comparison())
    rows = tuple(ComparisonRow(label, "", label == "single") for label in VALUES)
    assert " over seeds 0-3." in headline(comparison(rows=rows))
    numbers = {key: number(key[0], {0: 70.0}) for key in comparison().numbers}
    assert "deviation" not in headline(comparison(numbers=numbers))  # of one seed
    lacking = {1: "failed: the loss is NaN", 3: "failed: the loss is NaN", 4: "not run"}
    kept = {0: 80.0, 2: 80.5}
    numbers = comparison().numbers | {("up", "MUTAG"): replace(number("up", kept), missing=lacking)}
    found = comparison(numbers=numbers)
    for text in (headline(found), latex(found)):
        assert "seeds 0, 2 (up)" in text
        assert " Failed: seeds 1, 3 of up. " in text
    columns = (Column("MUTAG"), Column("DD"))
    numbers |= {(label, "DD"): number(label, some) for label, some in VALUES.items()}
    assert "seeds 1, 3 of up in MUTAG." in headline(comparison(columns=columns, numbers=numbers))


def test_curves_are_of_the_loss_and_of_the_return_in_control(tmp_path: Path) -> None:
    lines = [
        {"step": 100, "seconds": 1.0, "contrastive_loss": 2.0, "critic_loss": 1.0},
        {"step": 200, "seconds": 2.0, "evaluation": 30.0},
        {"step": 200, "seconds": 2.0, "contrastive_loss": 1.5, "critic_loss": 0.5},
    ]
    log = tmp_path / "log.jsonl"
    log.write_text("".join(json.dumps(line) + "\n" for line in lines))
    numbers = {
        key: replace(each, sources={s: replace(x, log=log) for s, x in each.sources.items()})
        for key, each in comparison().numbers.items()
    }
    panels, lacking = learning(comparison(numbers=numbers))
    assert [panel.title for panel in panels] == ["MUTAG: contrastive_loss", "MUTAG: evaluation"]
    assert panels[1].lines["single"] == {20.0: [30.0]}  # of 20 epochs
    assert lacking == []


def test_rows_that_are_equal_in_every_common_seed_are_named() -> None:
    twin = number("twin", {seed: VALUES["up"][seed] for seed in (1, 2)})
    near = number("near", {**VALUES["up"], 3: 80.2})
    made = comparison()
    made = replace(
        made,
        rows=(*made.rows, ComparisonRow("twin"), ComparisonRow("near")),
        numbers={**made.numbers, ("twin", "MUTAG"): twin, ("near", "MUTAG"): near},
    )
    named = [text for text in remarks(made) if "the same metrics in every seed" in text]
    assert [text.split(" have")[0] for text in named] == [
        "MUTAG: up and twin",
        "MUTAG: twin and near",
    ]
    baselines = tuple(replace(row, baseline=True) for row in made.rows)
    assert not any("the same metrics" in text for text in remarks(replace(made, rows=baselines)))


def test_a_row_has_the_median_time_the_largest_memory_and_the_budget_of_all() -> None:
    def number_of(*runs: tuple[float, int, int]) -> Number:
        sources = {}
        for seed, (seconds, size, epochs) in enumerate(runs):
            one = record(f"a/{seed}", 70.0)
            result = {**one.result, "seconds": seconds, "peak_memory_bytes": size * 10**9}
            one = replace(one, config={**one.config, "epochs": epochs}, result=result)
            sources[seed] = NumberOrigin(one, "run here")
        return Number("accuracy", "%", sources)

    for epochs, said in ((20, "epochs 20"), (30, "")):
        number = number_of((1.0, 2, 20), (2.0, 1, 20), (9.0, 1, epochs))
        made = comparison(rows=(ComparisonRow("plain"),), numbers={("plain", "MUTAG"): number})
        assert cost_grid(made).lines[0][2:4] == ("2", "2.0")
        assert budget(made) == said


def test_latex_is_escaped_bold_where_better_and_says_what_was_set() -> None:
    text = latex(comparison())
    assert r"up & \textbf{80.45 ± 0.48} \\" in text
    assert r"below \& 5\%\_ & 60.48 ± 0.41 \\" in text
    assert r"single & 99.00 \\" in text
    assert text.count(r"\textbf") == 1
    assert "Commit 391a9aa000." in text
    text = latex(comparison(title="a\\b~^{}#$%&_<>"))
    assert r"a\textbackslash{}b\textasciitilde{}\textasciicircum{}\{\}\#\$\%\&\_$<$$>$" in text
    assert "paper tier, changed by epochs=3" in latex(comparison(changed=("epochs=3",)))


@pytest.mark.slow
def test_latex_compiles(tmp_path: Path) -> None:
    assert fault_of_latex(latex(comparison()), tmp_path) == ""


@pytest.mark.slow
@pytest.mark.usefixtures("modules_server")
def test_a_loss_is_a_row_of_a_table_that_can_be_published(
    losses: Path, tmp_path: Path, at_once: AtOnce, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[Comparison] = []

    def write_and_keep(folder: Path, comparison: Comparison) -> list[Path]:
        written.append(comparison)
        return write(folder, comparison)

    monkeypatch.setattr(command, "write", write_and_keep)
    spelled = f"{losses.name}:mine"
    choice = ("--rows", "graphcl", "--seeds", "0-1", "--with", spelled, "--to", "paper")
    out, _ = at_once(*SMOKE, *choice, "--watch", "1")
    lines = out.splitlines()
    assert "graph/mmcl/table-4: mine is GraphCL with your loss; what differs:" in lines
    total = next(place for place, line in enumerate(lines) if "4 of 4 cells to run" in line)
    assert total < next(place for place, line in enumerate(lines) if "seed-0" in line)
    assert "graph/mmcl/table-4 (smoke tier): rows beside GraphCL" in lines
    assert re.search(r"^  mine: runs/own/graph/atlas/\S+ and 1 more beside$", out, re.MULTILINE)
    paper = tmp_path / "paper"
    assert {file.name for file in paper.iterdir()} == {
        *("table.md", "table.tex", "table.csv", "gains.pdf", "gains.png", "curves.pdf"),
        "records",
    }
    with (paper / "table.csv").open() as stream:
        found = {row["row"]: row for row in csv.DictReader(stream)}
    assert list(found) == ["GraphCL", "mine"]
    # It computes what GraphCL's row trains with.
    assert float(found["mine"]["mean"]) == pytest.approx(float(found["GraphCL"]["mean"]), abs=1.0)
    assert found["mine"]["outcome"] == "undecided (too few seeds)"
    assert "@inproceedings{graphcl," in (paper / "table.md").read_text()
    assert not (tmp_path / "results").exists()

    # What is finished is not run again; what the folder has is not lost without a word.
    more = ("--rows", "graphcl,hcl", "--seeds", "0-1", "--to", "paper", "--against", "hcl")
    _, err = at_once(*SMOKE, *more, code=2)
    assert "paper has what this command would not write: mine (seeds 0-1); choose them" in err
    mine = ("--with", spelled)
    out, _ = at_once(*SMOKE, *more, *mine)
    assert "  mine: seeds 0-1 run here" in out
    assert "2 of 2 cells to run" in out
    panels, lacking = learning(written[-1])
    assert {label for panel in panels for label in panel.lines} == {"GraphCL", "HCL", "mine"}
    assert lacking == []
    text = (paper / "table.md").read_text()
    for label in ("GraphCL", "HCL", "mine"):
        assert re.search(rf"^\| {label} \| ", text, re.MULTILINE)
    assert "rows beside HCL" in text
    assert "†" not in text

    # Seeds that are added to a row after its numbers were seen mark it, in whatever is published.
    at_once(*SMOKE, *more[:2], "--seeds", "0-2", *more[4:], *mine)
    text = (paper / "table.md").read_text()
    marked = set(re.findall(r"^\| (\S+) \|.* †", text, re.MULTILINE))
    assert marked == {"GraphCL", "HCL", "mine"}
    assert POST_HOC_NOTE in text
    at_once(*SMOKE, *more, *mine, "--replace")
    assert "†" not in (paper / "table.md").read_text()

    # A changed loss is another row's runs; a comment changes nothing.
    edited(losses, f"# A comment changes nothing.\n{LOSS}")
    out, _ = at_once(*SMOKE, *more, *mine)
    assert "to run" not in out
    assert (paper / "records/losses/mine" / losses.name).read_text().endswith(LOSS)
    edited(losses, LOSS.replace("negatives - positives", "2 * (negatives - positives)"))
    out, _ = at_once("plan", *SMOKE, *more, *mine)
    assert "mine: seeds 0-1 to run" in out

    # A second place, which has no runs, takes the records of the first, and the loss with them.
    other = tmp_path / "other"
    other.mkdir()
    shutil.copytree(paper / "records", other / "theirs")
    sent = Path("theirs/losses/mine", losses.name)
    sys.modules.pop(losses.stem)
    monkeypatch.setattr(sys, "path", [place for place in sys.path if str(tmp_path) not in place])
    theirs = ("--rows", "graphcl,hcl", "--seeds", "0-1", "--records", "theirs", "--to", "mine")
    out, _ = at_once(*SMOKE, *theirs, "--with", f"{sent}:mine", folder=other)
    assert "6 of 6 runs there" in out
    assert "| mine |" in (other / "mine/table.md").read_text()


def test_seeds_count_as_declared_until_a_number_of_their_row_is_there(tmp_path: Path) -> None:
    options = Namespace(to=tmp_path, replace=True)
    cells = TABLE_4.cells("smoke", row="HCL", seeds=[0, 1, 2])
    selection = command.Selection(TABLE_4, "smoke", (), "", "HCL", (), cells)
    place = ("HCL", "embedded sample")

    def declared(*written: int) -> set[int]:
        seeds = [{"row": place[0], "column": place[1], "seeds": list(written)}] * bool(written)
        content = {"form": command.FORM, "scope": selection.scope, "runs": [], "declared": seeds}
        (tmp_path / "records").mkdir(exist_ok=True)
        (tmp_path / "records/comparison.json").write_text(json.dumps(content))
        return set(command._with_earlier(options, selection).declared[place])

    assert declared() == {0, 1, 2}
    assert declared(0) == {0}  # 1 and 2 are added
    assert declared(0, 1, 2) == {0, 1, 2}  # that comparison was interrupted


def test_a_committed_record_stands_in_on_the_same_processor(
    tmp_path: Path, at_once: AtOnce, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = Path(__file__).resolve().parents[2]
    monkeypatch.setattr(
        command, "processor_of", lambda r: r.environment["hardware"].get("processor")
    )
    monkeypatch.setattr(
        command, "current_environment", lambda workers: {"hardware": {"processor": "AMD EPYC"}}
    )

    def choice_of(seeds: str) -> tuple[str, ...]:
        rows = ("--column", "MUTAG", "--rows", "graphcl,hcl,dcl")
        return ("graph", "mmcl", "--table", "4", *rows, "--seeds", seeds)

    run = (*choice_of("0-2"), "--results", str(root / "results"), "--to", "paper")
    out, _ = at_once("compare", *run)
    assert re.search(r"  HCL: seeds 0-2 recorded at [0-9a-f]{7}", out)
    assert "to run" not in out
    # The numbers are those of the committed table.
    with (root / "results/graph/mmcl/table-4.csv").open() as stream:
        there = {
            row["row"]: [float(row[f"measured_seed_{seed}"]) for seed in range(3)]
            for row in csv.DictReader(stream)
            if row["column"] == "MUTAG" and row["row"] in ("GraphCL", "HCL", "DCL")
        }
    with (tmp_path / "paper/table.csv").open() as stream:
        here = {
            row["row"]: [float(row[f"seed_{seed}"]) for seed in range(3)]
            for row in csv.DictReader(stream)
        }
    assert here == there
    assert not (tmp_path / "paper/curves.pdf").exists()
    # And so is what is printed, over the same seeds.
    at_once("compare", *choice_of("0-19"), "--results", str(root / "results"), "--to", "whole")
    head, *lines = [
        [text.strip() for text in line.strip("|\n").split("|")]
        for line in (root / "results/graph/mmcl/table-4.md").read_text().splitlines()
        if line.startswith("|")
    ]
    page = {line[0]: line[head.index("MUTAG")] for line in lines if line[1] == "**measured**"}
    tex = (tmp_path / "whole/table.tex").read_text()
    for label in ("GraphCL", "HCL", "DCL"):
        assert f"\n{label} & {page[label].partition(';')[0].removesuffix(' †')} & " in tex
    # Seeds that a paper's table marks are marked here.
    table = ("vision", "margins", "--table", "table-2-cifar10", "--tier", "short")
    rows = ("--row", "SimCLR", "--row", "SimCLR + margins", "--results", str(root / "results"))
    for seeds, marked in ("0-2", False), ("0-3", True):
        out, _ = at_once("compare", *table, *rows, "--seeds", seeds)
        assert "to run" not in out
        assert (POST_HOC_NOTE in " ".join(out.split())) == marked
    (tmp_path / "file").touch()
    _, err = at_once("compare", *run[:-2], "--to", "file", code=2)
    assert "file: cannot be written (Not a directory); choose another folder with --to" in err
    out, _ = at_once("plan", "compare", *run[:-2], "--again", "--to", "other")
    assert "9 of 9 cells to run" in out
    monkeypatch.setattr(
        command, "current_environment", lambda workers: {"hardware": {"processor": "VAX"}}
    )
    out, _ = at_once("plan", "compare", *run[:-2], "--to", "other")
    assert "recorded on AMD EPYC, not on VAX: run here" in out
    assert not (tmp_path / "other").exists()


def sent(folder: Path, row: str, config: dict[str, object], *seeds: int) -> Path:
    """Records of someone else in a folder, of finished runs of one row."""
    lines = []
    for seed in seeds:
        of_seed = {**config, "seed": seed}
        found = record(f"own/smoke/graph/mmcl/table-4/{row}/embedded-sample/seed-{seed}", 80.0)
        result = {**found.result, "tier": "own"}
        content = (of_seed, found.environment, result)
        lines.append(record_line(Record(found.address, *content, content_hash(*content))))
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{row}.records.jsonl").write_text("".join(lines))
    return folder


HCL = ("--rows", "hcl", "--seeds", "0", "--records", "theirs", "--to", "paper")


def test_files_of_the_folder_that_are_of_no_comparison_are_kept(
    tmp_path: Path, at_once: AtOnce
) -> None:
    sent(tmp_path / "theirs", "HCL", dict(TABLE_4.cells("smoke", row="HCL")[0].content), 0)
    (tmp_path / "paper").mkdir()
    (tmp_path / "paper/table.tex").write_text("A chapter.\n")
    for words in (SMOKE, ("plan", *SMOKE)):
        _, err = at_once(*words, *HCL, code=2)
        assert "paper holds table.tex without the records/comparison.json of a comp" in err
    assert (tmp_path / "paper/table.tex").read_text() == "A chapter.\n"
    (tmp_path / "paper/table.tex").rename(tmp_path / "paper/chapter.md")
    for _ in range(2):  # its own files are written again
        at_once(*SMOKE, *HCL)
    there = {file.name for file in (tmp_path / "paper").iterdir()}
    assert there - set(command.WRITTEN) == {"chapter.md", "records"}


def test_records_of_others_are_checked_and_those_of_no_row_are_named(
    tmp_path: Path, at_once: AtOnce
) -> None:
    config = dict(TABLE_4.cells("smoke", row="HCL")[0].content)
    theirs = sent(tmp_path / "theirs", "HCL", config, 0, 1)
    choice = ("plan", *SMOKE, *HCL)
    out, _ = at_once(*choice)
    assert "HCL: seed 0 recorded at 391a9aa" in out
    assert "theirs: 1 record of no chosen row" in out
    # Of another configuration, however its row is called.
    sent(theirs, "HCL", {**config, "epochs": 7}, 0)
    out, _ = at_once(*choice)
    assert "HCL: seed 0 to run" in out
    assert "theirs: 1 record of no chosen row, column, seed or configuration: own/smoke/" in out
    sent(theirs, "HCL", config, 0)
    twice = theirs / "twice.records.jsonl"
    twice.write_text(
        (sent(tmp_path / "b", "HCL", {**config, "epochs": 7}, 0) / "HCL.records.jsonl").read_text()
    )
    _, err = at_once(*choice, code=2)
    assert "two records of own/smoke/graph/mmcl/table-4/HCL/embedded-sample/seed-0" in err
    twice.unlink()
    file = theirs / "HCL.records.jsonl"
    file.write_text(file.read_text().replace('"seconds": ', '"seconds": 1', 1))
    _, err = at_once(*choice, code=2)
    assert "SHA-256" in err


def test_a_row_of_ones_own_has_one_label_and_is_no_other_row(losses: Path, at_once: AtOnce) -> None:
    losses.write_text(LOSS.replace("def mine", "def hcl"))
    given = ("--with", f"{losses.name}:hcl")
    for rows in ("graphcl", "graphcl,hcl"):
        out, _ = at_once("plan", *SMOKE, "--rows", rows, "--seeds", "0", *given)
        assert "  hcl (yours): seed 0 to run\n" in out
    _, err = at_once("plan", *SMOKE, "--rows", "graphcl", *given, *given, code=2)
    assert "hcl (yours)" in err


def test_rows_and_variants_are_named_in_many_ways(at_once: AtOnce) -> None:
    out, _ = at_once(
        *("plan", *SMOKE, "--rows", "hcl,mmcl-inv-both-views", "--seeds", "0"),
        *("--row", "MMCL INV, first view", "--row", "hcl:objective.beta=2:epochs=3"),
    )
    for row in (
        "HCL",
        "MMCL INV, both views",
        "MMCL INV, first view",
        "HCL, objective.beta=2, epochs=3",
    ):
        assert f"  {row}: seed 0 to run\n" in out
    assert "4 rows, compared with HCL" in out


@pytest.mark.parametrize(
    ("words", "word"),
    [
        (("--rows", "inv"), "mean MMCL INV"),
        (("--rows", "hcl", "--against", "mmcl"), "MMCL INV, both views | "),
        (("--row", "hcl:3"), "ROW:NAME=VALUE"),
        (("--rows", "graphcl", "--row", "hcl:objective.beta=1"), "objective.beta=1"),
        (("--rows", "hcl", "--set", "protocol=knn"), "'knn'"),
        ((), "--rows"),
        (("--rows", "hcl", "--to", "paper"), "epochs=3"),  # of another comparison, in that folder
        (("--rows", "hcl", "--records", "theirs"), "theirs"),
    ],
)
def test_what_cannot_be_compared_is_named(
    tmp_path: Path, at_once: AtOnce, words: tuple[str, ...], word: str
) -> None:
    scope = {"table": "graph/mmcl/table-4", "tier": "smoke", "data": "of the table"}
    content = {"form": command.FORM, "scope": {**scope, "settings": "epochs=3"}}
    file = tmp_path / "paper/records/comparison.json"
    file.parent.mkdir(parents=True)
    file.write_text(json.dumps({**content, "runs": [], "declared": []}))
    (tmp_path / "theirs").mkdir()
    _, err = at_once("plan", *SMOKE, *words, code=2)
    assert word in err
    assert err.count("\n") == 1


@pytest.fixture
def molecules(tmp_path: Path) -> Path:
    """A file of sixty small graphs in two classes."""
    generator = torch.Generator().manual_seed(0)
    graphs = []
    for number in range(60):
        x = torch.randn(8, 3, generator=generator) + number % 2
        edges = torch.randint(8, (2, 14), generator=generator)
        graphs.append(Data(x=x, edge_index=edges, y=torch.tensor([number % 2])))
    file = tmp_path / "in/molecules.pt"
    file.parent.mkdir()
    torch.save(graphs, file)
    return file


@pytest.mark.slow
@pytest.mark.usefixtures("modules_server")
def test_rows_are_compared_on_data_of_ones_own(
    molecules: Path, tmp_path: Path, at_once: AtOnce
) -> None:
    choice = ("--rows", "graphcl,dcl", "--seeds", "0-1", "--set", "epochs=1", "--to", "paper")
    out, _ = at_once("compare", "graph", "--data", "in/molecules.pt", *choice)
    assert "Contrastive losses on molecules (short tier, changed by epochs=1)" in " ".join(
        out.split()
    )
    configs = [json.loads(f.read_text()) for f in (tmp_path / "runs/own").rglob("config.json")]
    assert {config["dataset"] for config in configs} == {"file:molecules.pt"}  # no path of it
    assert str(tmp_path) not in (tmp_path / "paper/table.md").read_text()

    # The same file elsewhere is the same data, another file of its name is not.
    other = tmp_path / "other"
    other.mkdir()
    shutil.copy(molecules, other)
    shutil.copytree(tmp_path / "paper/records", other / "theirs")
    theirs = ("--records", "theirs")
    elsewhere = ("compare", "graph", "--data", "molecules.pt", *choice, *theirs)
    out, _ = at_once(*elsewhere, folder=other)
    assert "4 of 4 runs there" in out
    graphs = torch.load(molecules, weights_only=False)
    torch.save(graphs[:50], other / "molecules.pt")
    _, err = at_once(*elsewhere, folder=other, code=2)
    assert "molecules.pt holds other data than those of own/short/graph/mmcl/table-4/" in err


def test_graphs_in_a_file_are_read_without_running_it(molecules: Path, tmp_path: Path) -> None:
    found = graph.own.file(molecules)
    assert found.num_graphs == 60
    assert found.y.tolist() == [0, 1] * 30
    saved = tmp_path / "saved.pt"
    graphs = torch.load(molecules, weights_only=False)
    InMemoryDataset.save(graphs, str(saved))
    again = graph.own.file(saved)
    assert torch.equal(again.edge_index, found.edge_index)
    assert torch.equal(again.x, found.x)
    for content in ({"x": torch.ones(3)}, Path("x")):  # of the second, a class that is not PyG's
        torch.save(content, saved)
        with pytest.raises(UserError, match="Data"):
            graph.own.file(saved)
    saved.write_bytes(molecules.read_bytes()[:500])
    with pytest.raises(UserError, match="damaged"):
        graph.own.file(saved)
    unlabelled = [Data(x=torch.ones(2, 1), edge_index=torch.tensor([[0], [1]]))] * 2
    for some, why in (
        (unlabelled, "label"),
        (graphs[:18], "ten"),
        (graphs[::2] + graphs[1:4:2], "class 1"),
    ):
        torch.save(some, saved)
        with pytest.raises(UserError, match=why):
            graph.own.read(saved, tmp_path)
    torch.save(graphs[::2] + graphs[1:6:2], saved)
    with pytest.warns(RuntimeWarning, match="fewer than ten"):
        graph.own.read(saved, tmp_path)


def test_data_that_cannot_be_scored_are_refused_before_anything_runs(
    tmp_path: Path, at_once: AtOnce
) -> None:
    for label in ("cats", "dogs"):
        folder = tmp_path / "in/train" / label
        folder.mkdir(parents=True)
        Image.new("RGB", (8, 8)).save(folder / "1.png")
    for words, word in (
        (("vision", "--data", "none"), "--data none"),
        (("rl", "--data", "in"), "--data"),
        (("graph", "--data", "in", "--tier", "smoke"), "smoke"),
        (("vision", "--data", "in"), "test"),
        (("video", "--data", "in"), "videos"),
        (("text", "--data", "in"), ".txt"),
        (("graph",), "DOMAIN PAPER"),
    ):
        _, err = at_once("compare", *words, code=2)
        assert err.count("\n") == 1
        assert word in err
    assert not list(tmp_path.rglob("config.json"))


def test_names_of_data_are_text_in_every_file() -> None:
    data = "a[red]\n\n# <b>"
    made = comparison(data=data, title=f"Losses on {data}")
    assert "\n\n#" not in latex(made)
    assert r"a\[red\] # &lt;b>" in markdown(made)


def test_what_another_process_writes_meanwhile_is_not_lost(
    tmp_path: Path, at_once: AtOnce, monkeypatch: pytest.MonkeyPatch
) -> None:
    for row in ("HCL", "DCL"):
        sent(tmp_path / "theirs", row, dict(TABLE_4.cells("smoke", row=row)[0].content), 0)
    show, locked = command._print_comparison, []

    def written_by_another(*given: object) -> None:
        monkeypatch.setattr(command, "_print_comparison", show)
        at_once(*SMOKE, "--rows", "dcl", *HCL[2:])
        show(*given)  # type: ignore[arg-type]

    def write_and_look(folder: Path, comparison: Comparison) -> list[Path]:
        locked.append(is_locked(tmp_path / "paper/records"))
        return write(folder, comparison)

    monkeypatch.setattr(command, "write", write_and_look)
    monkeypatch.setattr(command, "_print_comparison", written_by_another)
    _, err = at_once(*SMOKE, *HCL, code=2)
    assert "paper has what this command would not write: DCL (seed 0)" in err
    assert locked == [True]
    at_once(*SMOKE, "--rows", "dcl,hcl", *HCL[2:])
    with (tmp_path / "paper/table.csv").open() as stream:
        assert [row["row"] for row in csv.DictReader(stream)] == ["DCL", "HCL"]
    assert not is_locked(tmp_path / "paper/records")
