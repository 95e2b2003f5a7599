"""What the report counts, what it refuses, and how it writes it down."""

import csv
import dataclasses
import io
import itertools
import math
import re
import shutil
import subprocess
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
from rich.console import Console

from shared.errors import UserError
from shared.experiment.records import Record, read_records, record_line
from shared.experiment.tables import (
    Cell,
    Claim,
    Column,
    Power,
    Published,
    Row,
    Table,
    Tier,
    Value,
    canonical,
)
from shared.report import files
from shared.report.console import terminal
from shared.report.files import csv_text, latex, markdown
from shared.report.losses import PORTRAITS
from shared.report.measuring import Measured, MeasuredCell, measure, read_figures
from shared.report.page import site, write_site
from shared.report.statistics import summarise
from shared.report.wording import NO_NUMBERS, also_of, headline, legend_of

ROOT = Path(__file__).parents[1]
PROTOCOL = "svm-10fold-nested-v1"
OURS = "ours & <new>_1"
GRAPHCL = {0: 86.0, 1: 87.0, 2: 88.0}
MMCL = {0: 87.9, 1: 89.0, 2: 90.1}


@dataclass(frozen=True)
class Config:
    seed: int = 0
    dataset: str = "MUTAG"
    loss: str = "nce"
    widths: tuple[int, ...] = (32, 32)
    epochs: int = 20

    @property
    def protocol(self) -> str:
        return PROTOCOL

    def reduced(self) -> "Config":
        return dataclasses.replace(self, epochs=1)


def make_table(**changes: Any) -> Table:
    published = Published(
        source="Max-Margin Contrastive Learning, Table 4",
        title="Graphs",
        columns=("MUTAG", "DD"),
        rows={
            "GraphCL": (Value(86.80, 1.34), Value(78.62, 0.40)),
            "MMCL": (Value(88.42, 1.33), None),
        },
        statistic="mean ± std",
        notes={"MMCL": "variant not stated"},
        warnings=("the second column cannot be right",),
    )
    table = Table(
        domain="graph",
        paper="mmcl",
        name="table-4",
        title="Graph classification",
        section="Section 5.3, Table 4",
        metric="accuracy",
        unit="%",
        protocol=PROTOCOL,
        config=Config(),
        rows=(
            Row("GraphCL", {"loss": "nce"}, "GraphCL", "one-hop subgraph, as in the code"),
            Row("MMCL", {"loss": "mmcl"}, "MMCL"),
            Row(OURS, {"loss": "new"}),
        ),
        columns=(Column("MUTAG"), Column("DD", {"dataset": "DD"})),
        seeds={"paper": (0, 1, 2), "short": (0, 1), "smoke": (0,)},
        published=published,
        claims=(Claim("MMCL improves on GraphCL (5.3)", "MMCL", "GraphCL", ("MUTAG", "DD"), 0.5),),
        short={"epochs": 2},
        varies="pretraining seed; folds fixed",
        references=(Published("A README", "Other losses", ("MUTAG",), {"DCL": (Value(88.09),)}),),
        notes=("Pretrained on all graphs.",),
        powers=(Power(1.6, 0.5, ("MUTAG",), "Published."),),
    )
    return dataclasses.replace(table, **changes)


TABLE = make_table()


def cell_of(row: str, column: str, seed: int, tier: Tier = "paper") -> Cell:
    (cell,) = TABLE.cells(tier, row=row, column=column, seeds=[seed])
    return cell


def record_of(cell: Cell, value: float, **result: Any) -> Record:
    return Record(
        address=cell.address,
        config=canonical(cell.config),
        environment={
            "commit": "c0ffee" * 6 + "beef",
            "dirty": cell.seed == 1,
            "command": f"./reproduce.sh --cell {cell.address}",
            "started": "2026-01-02T03:04:05+00:00",
            "hardware": {"processor": "Some <Processor>", "cores": 2},
            "versions": {"torch": "2.13.0"},
            "data": {cell.column: "ab" * 32},
        },
        result={
            "metrics": {"accuracy": value, "folds": [value] * 10},
            "protocol": PROTOCOL,
            "tier": cell.tier,
            "seconds": 34.25,
            "peak_memory_bytes": 400 * 2**20,
        }
        | result,
    )


def records_of(row: str, column: str, values: dict[int, float]) -> list[Record]:
    return [record_of(cell_of(row, column, seed), value) for seed, value in values.items()]


RECORDS = [
    *records_of("GraphCL", "MUTAG", GRAPHCL),
    *records_of("MMCL", "MUTAG", MMCL),
    *records_of(OURS, "MUTAG", {0: 85.0, 2: 86.0}),
    *records_of("GraphCL", "DD", {0: 78.0}),
]
STATUS = {
    cell_of("MMCL", "DD", seed).address: "data missing; fetch it with: ./reproduce.sh data graph"
    for seed in range(3)
}


@pytest.fixture
def measured() -> Measured:
    return measure(TABLE, "paper", RECORDS, STATUS)


def found(measured: Measured, row: str, column: str) -> MeasuredCell:
    (cell,) = (
        cell
        for cell in itertools.chain(*measured.cells)
        if (cell.row.label, cell.column.label) == (row, column)
    )
    return cell


def shown(measured: Measured, width: int = 100) -> str:
    console = Console(width=width, file=io.StringIO(), force_terminal=False)
    with console.capture() as capture:
        console.print(terminal(measured))
    return capture.get()


def test_measured_stands_beside_published(measured: Measured) -> None:
    cell = found(measured, "GraphCL", "MUTAG")
    assert cell.summary is not None
    assert (cell.summary.n, cell.summary.mean, cell.summary.sd) == (3, 87.0, 1.0)
    assert cell.published == Value(86.80, 1.34)
    assert cell.difference == pytest.approx(0.20)
    assert (dict(cell.values), dict(cell.missing)) == (GRAPHCL, {})


def test_cells_without_result_say_why(measured: Measured) -> None:
    missing = found(measured, "MMCL", "DD")
    assert missing.summary is None
    assert set(missing.missing.values()) == set(STATUS.values())
    assert missing.published is None
    assert dict(found(measured, OURS, "DD").missing) == dict.fromkeys(range(3), "not run")
    assert dict(found(measured, "GraphCL", "DD").missing) == {1: "not run", 2: "not run"}


def test_every_claim_is_judged_in_every_column(measured: Measured) -> None:
    mutag, dd = measured.verdicts
    assert (mutag.column, mutag.verdict.kind) == ("MUTAG", "reproduced")
    assert mutag.verdict.gain == pytest.approx(2.0)
    assert mutag.verdict.published_gain == pytest.approx(1.62)
    assert (dd.column, dd.verdict.kind, dd.verdict.published_gain) == ("DD", "not run", None)


def test_another_configuration_is_stale() -> None:
    (old,) = records_of("MMCL", "MUTAG", {0: 99.0})
    old = dataclasses.replace(old, config=old.config | {"epochs": 10})
    cell = found(measure(TABLE, "paper", [old], {}), "MMCL", "MUTAG")
    assert cell.summary is None
    assert cell.missing[0] == "stale: measured with another configuration"
    assert cell.missing[1] == "not run"


def test_another_protocol_is_stale() -> None:
    record = record_of(cell_of("MMCL", "MUTAG", 0), 99.0, protocol="best-epoch-on-test")
    cell = found(measure(TABLE, "paper", [record], {}), "MMCL", "MUTAG")
    assert cell.summary is None
    assert cell.missing[0] == "stale: measured with protocol best-epoch-on-test"


@pytest.mark.parametrize("metrics", [{}, {"accuracy": math.nan}, {"accuracy": [1.0]}])
def test_a_record_without_the_metric_does_not_count(metrics: dict[str, Any]) -> None:
    record = record_of(cell_of("MMCL", "MUTAG", 0), 99.0, metrics=metrics)
    cell = found(measure(TABLE, "paper", [record], {}), "MMCL", "MUTAG")
    assert cell.missing[0] == "failed: the result has no finite accuracy"


def test_tiers_are_never_mixed() -> None:
    short = [record_of(cell_of("MMCL", "MUTAG", seed, "short"), 70.0) for seed in (0, 1)]
    disguised = record_of(cell_of("MMCL", "MUTAG", 2), 70.0, tier="short")
    records = [*short, disguised, *RECORDS[:3]]
    paper = found(measure(TABLE, "paper", records, {}), "MMCL", "MUTAG")
    assert paper.summary is None
    assert paper.missing[2] == "stale: measured in the short tier"
    measured = measure(TABLE, "short", records, {})
    assert dict(found(measured, "MMCL", "MUTAG").values) == {0: 70.0, 1: 70.0}
    assert found(measured, "GraphCL", "MUTAG").summary is None
    assert "epochs = 2" in markdown(measured)
    assert "Short tier" in html([measured])


def test_the_later_counting_record_of_one_address_is_taken() -> None:
    cell = cell_of("MMCL", "MUTAG", 0)
    first, second = record_of(cell, 80.0), record_of(cell, 81.0)
    stale = dataclasses.replace(record_of(cell, 99.0), config={})
    measured = measure(TABLE, "paper", [first, second, stale], {})
    assert dict(found(measured, "MMCL", "MUTAG").values) == {0: 81.0}


def test_undeclared_seeds_are_named_but_do_not_count() -> None:
    extra = records_of("MMCL", "MUTAG", {9: 99.0})
    measured = measure(TABLE, "paper", [*RECORDS, *extra], {})
    assert dict(found(measured, "MMCL", "MUTAG").values) == MMCL
    (line,) = measured.ignored
    assert line.startswith("graph/mmcl/table-4/mmcl/mutag/seed-9: ")
    assert "seed-9" in markdown(measured)


def test_terminal_fits_and_says_whose_numbers(measured: Measured) -> None:
    text = shown(measured)
    assert max(map(len, text.splitlines())) <= 100
    lines = [line.split() for line in text.splitlines()]
    start = next(index for index, line in enumerate(lines) if line[:2] == ["GraphCL", "here"])
    assert lines[start] == "GraphCL here 87.00 ± 1.00 78.00".split()
    assert lines[start + 1] == "1 of 3 seeds".split()
    assert lines[start + 2] == "paper 86.80 ± 1.34 78.62 ± 0.40".split()
    assert "MUTAG paper tier: reproduced gain +2.00" in " ".join(text.split())
    assert "DD (MMCL): data missing; fetch it with: ./reproduce.sh data graph" in text


def test_terminal_with_five_columns_and_many_rows_fits_100_columns() -> None:
    names = ("MUTAG", "DD", "REDDIT-BINARY", "REDDIT-MULTI-5K", "IMDB-BINARY")
    rows = tuple(
        Row(f"low-rank projection, form number {number}", {"loss": str(number)})
        for number in range(14)
    )
    columns = tuple(Column(name, {"dataset": name}) for name in names)
    table = make_table(rows=(*TABLE.rows, *rows), columns=columns)
    records = [
        record_of(cell, 80.0 + cell.seed)
        for cell in table.cells("paper")
        if cell.seed < 2 or cell.column == "DD"
    ]
    text = shown(measure(table, "paper", records, {}))
    assert max(map(len, text.splitlines())) <= 100
    assert "80.50 ± 0.71  81.00 ± 1.00  80.50 ± 0.71  80.50 ± 0.71  80.50 ± 0.71" in text
    assert "MUTAG (seed 2 of all rows)" in text


def test_smoke_shows_no_published_number_and_no_verdict() -> None:
    record = record_of(cell_of("MMCL", "embedded sample", 0, "smoke"), 60.0)
    measured = measure(TABLE, "smoke", [record, *RECORDS], {})
    assert measured.verdicts == ()
    for text in (shown(measured), markdown(measured), latex(measured)):
        assert "60.00" in text
        assert "86.80" not in text
        assert "Smoke tier" in text
    assert "| *published* |" not in markdown(measured)


def test_smoke_never_enters_results(tmp_path: Path) -> None:
    measured = measure(TABLE, "smoke", [], {})
    with pytest.raises(ValueError, match="smoke"):
        files.write(tmp_path, measured)
    with pytest.raises(ValueError, match="smoke"):
        write_site(tmp_path, [measured])
    assert list(tmp_path.iterdir()) == []


def test_markdown_keeps_measured_and_published_apart(measured: Measured) -> None:
    lines = markdown(measured).splitlines()
    assert "| method | whose number | MUTAG | DD |" in lines
    assert "| GraphCL | **measured here** | 87.00 ± 1.00 | 78.00<br>1 of 3 seeds |" in lines
    assert "|  | *published* | *86.80 ± 1.34* | *78.62 ± 0.40* |" in lines
    assert "- GraphCL: one-hop subgraph, as in the code" in lines
    assert "- the second column cannot be right" in lines
    assert any("varies between repeats: pretraining seed; folds fixed" in line for line in lines)
    assert any(
        line.startswith("| MUTAG | **paper tier: reproduced** | gain +2.00") for line in lines
    )


def test_markdown_escapes_a_pipe() -> None:
    table = make_table(notes=("a | b <c>",))
    assert "- a \\| b &lt;c>" in markdown(measure(table, "paper", [], {}))


def test_latex_is_escaped_and_balanced(measured: Measured) -> None:
    text = latex(measured)
    lines = text.splitlines()
    at = lines.index("GraphCL & 87.00$\\pm$1.00 & 78.00$^{1/3}$ \\\\")
    assert lines[at + 1] == " & \\textit{86.80$\\pm$1.34} & \\textit{78.62$\\pm$0.40} \\\\"
    assert "ours \\& \\textless{}new\\textgreater{}\\_\\allowbreak{}1 & " in text
    assert "accuracy (\\%)" in text
    assert text.isascii()
    assert text.count("{") == text.count("}")
    body = text[text.index("\\toprule") : text.index("\\bottomrule")]
    for line in body.splitlines():
        if line.endswith("\\\\") and "multicolumn" not in line:
            assert len(re.findall(r"(?<!\\)&", line)) == 2


def wide_and_long() -> Measured:
    """More columns and rows than a page in two columns holds, with long labels."""
    columns = tuple(Column(f"a data set of many words {n}") for n in range(8))
    long = "a row whose label is much longer than a column is wide, and then some"
    rows = tuple(Row(f"{long} {n}") for n in range(70))
    nothing = Published("GraphCL, Table 9", "None", columns=(), rows={})
    table = make_table(rows=rows, columns=columns, claims=(), powers=(), published=nothing)
    records = [record_of(cell, 80.0 + cell.seed) for cell in table.cells("paper")]
    return measure(table, "paper", records, {})


def test_what_a_page_cannot_hold_goes_on_in_further_floats() -> None:
    text = latex(wide_and_long())
    # Six columns and two, seventy rows of three lines each; then the table of another paper.
    assert text.count("\\begin{table*}") == 2 * 4 + 1
    assert text.count("continued") == 2 * 4 - 1
    assert text.count("81.00$\\pm$1.00") == 70 * 8


LATEX = shutil.which("pdflatex")
PAGE = r"\documentclass[twocolumn]{article}\usepackage{booktabs}\begin{document}%s\end{document}"


@pytest.mark.slow
@pytest.mark.skipif(LATEX is None, reason="no pdflatex is installed to set the tables with")
def test_latex_fits_a_page_of_two_columns(tmp_path: Path) -> None:
    committed = sorted((ROOT / "results").rglob("*.tex"))
    assert len(committed) > 5
    texts = {"wide": latex(wide_and_long()), "special": latex(measure(TABLE, "paper", RECORDS, {}))}
    texts |= {"-".join(file.parts[-4:]): file.read_text(encoding="utf-8") for file in committed}
    for name, text in texts.items():
        (tmp_path / "page.tex").write_text(PAGE % f"\n{text}\n", encoding="utf-8")
        done = subprocess.run(
            [str(LATEX), "-interaction=nonstopmode", "-halt-on-error", "page.tex"],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            errors="replace",
        )
        assert done.returncode == 0, (name, done.stdout[-1500:])
        too_wide = re.findall(r"Overfull \\hbox \(([\d.]+)pt", done.stdout)
        assert all(float(points) < 1 for points in too_wide), (name, too_wide)
        assert "Float too large" not in done.stdout, name


def test_latex_escapes_every_special_character() -> None:
    table = make_table(title=r"\ ~ ^ & % $ # _ { }")
    text = latex(measure(table, "paper", [], {}))
    assert (
        r"\caption{\textbackslash{} \textasciitilde{} \textasciicircum{} \& \% \$ \# "
        r"\_\allowbreak{} \{ \} (" in text
    )


def test_csv_round_trip(measured: Measured) -> None:
    lines = list(csv.DictReader(io.StringIO(csv_text(measured))))
    assert len(lines) == len(TABLE.rows) * len(TABLE.columns)
    by_cell = {(line["row"], line["column"]): line for line in lines}
    line = by_cell["MMCL", "MUTAG"]
    assert {seed: float(line[f"measured_seed_{seed}"]) for seed in range(3)} == MMCL
    assert float(line["measured_mean"]) == found(measured, "MMCL", "MUTAG").summary.mean
    assert (float(line["published_mean"]), float(line["published_std"])) == (88.42, 1.33)
    assert (line["ours"], line["tier"], line["seeds_declared"]) == ("no", "paper", "3")
    ours = by_cell[OURS, "MUTAG"]
    assert (ours["ours"], ours["published_mean"], ours["seeds_measured"]) == ("yes", "", "2")
    assert ours["status"] == "seed 1: not run"
    assert by_cell["MMCL", "DD"]["measured_mean"] == ""


def html(measured: list[Measured]) -> str:
    """The pages of tables and of their runs, one after the other."""
    texts = site(measured)
    return "".join(text for path, text in texts.items() if "/tables/" in path or "/runs/" in path)


class Page(HTMLParser):
    """Collects what must fit together in a page: tags, ids, links, text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.sources: list[str] = []
        self.words: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        if tag not in ("meta", "img", "link"):
            self.open.append(tag)
        if "id" in values:
            self.ids.append(str(values["id"]))
        if "href" in values:
            self.links.append(str(values["href"]))
        if "src" in values:
            self.sources.append(str(values["src"]))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def test_every_page_is_well_formed_and_every_link_leads_somewhere(tmp_path: Path) -> None:
    short = measure(TABLE, "short", records_of("MMCL", "MUTAG", {0: 87.9}), {})
    tables = [measure(TABLE, "paper", RECORDS, {}), short]
    for each in tables:
        files.write(tmp_path, each)
    write_site(tmp_path, tables)
    pages = {
        file: Page(file.read_text(encoding="utf-8"))
        for file in [tmp_path / "index.html", *(tmp_path / "site").rglob("*.html")]
    }
    assert len(pages) == 1 + 1 + 2 + 2 + len(PORTRAITS)  # claims, tables, runs, losses
    for file, page in pages.items():
        assert page.open == [], file
        assert len(set(page.ids)) == len(page.ids)
        for link in (*page.links, *page.sources):
            path, _, mark = link.partition("#")
            target = (file.parent / unquote(path)).resolve() if path else file
            assert link == "data:," or target.is_file(), (file, link)
            assert not mark or mark in pages[target].ids, (file, link)


def test_pages_that_are_no_more_are_deleted(tmp_path: Path) -> None:
    old = tmp_path / "site/claims/mmcl--old.html"
    old.parent.mkdir(parents=True)
    old.touch()
    write_site(tmp_path, [measure(TABLE, "paper", RECORDS, {})])
    assert not old.exists()
    assert (tmp_path / "site/site.css").is_file()


def test_every_name_behind_a_number_has_its_own_value() -> None:
    record = record_of(cell_of("GraphCL", "MUTAG", 0), 86.0)
    bare = dataclasses.replace(record, environment={**record.environment, "data": {}})
    text = html([measure(TABLE, "paper", [bare], {})])
    facts = dict(re.findall(r"<dt>(.*?)</dt><dd>(.*?)</dd>", text))
    assert facts["data"] == "none"  # an empty line would lend its name to the next
    assert facts["machine and versions"] == '<a href="#place-1">place 1</a>'
    assert '<li id="place-1">cores: 2' in text


def test_html_escapes_and_discloses(measured: Measured) -> None:
    text = html([measured])
    assert "ours &amp; &lt;new&gt;_1" in text
    assert "<new>" not in text
    assert "<Processor>" not in text
    words = " ".join(" ".join(Page(text).words).split())
    assert f"{OURS} ours" in words  # the tag beside the label
    assert "2 of 3 seeds" in words
    assert "./reproduce.sh --cell graph/mmcl/table-4/graphcl/mutag/seed- SEED" in words
    assert "commit (seed 1) " + "c0ffee" * 6 + "beef (dirty" in words
    assert "commit (seeds 0, 2) " + "c0ffee" * 6 + "beef commit" in words
    assert "MUTAG: " + "ab" * 32 in words
    assert "0 86.00 34.2 400 2026-01-02T03:04:05+00:00" in words
    assert "A README: Other losses" in words


def test_html_shows_further_facts_of_a_run_beside_its_machine() -> None:
    (record,) = records_of("MMCL", "MUTAG", {0: 87.9})
    facts = {"renderer": "egl: <software>"}
    record = dataclasses.replace(record, environment=record.environment | {"facts": facts})
    text = html([measure(TABLE, "paper", [record], {})])
    machine = "cores: 2, processor: Some &lt;Processor&gt;, renderer: egl: &lt;software&gt;"
    assert f'<li id="place-1">{machine}; torch: 2.13.0</li>' in text


def test_html_marks_whose_number_every_cell_holds(measured: Measured) -> None:
    text = html([measured])
    assert re.search(
        r'<td role="cell" class="here"[^>]*><a [^>]*>87.00 ± 1.00</a><small>3 seeds<', text
    )
    assert re.search(r'<td role="cell" class="printed"[^>]*>86.80 ± 1.34<small>\+0.20<', text)
    assert text.count('<th class="here" scope="col"') == 2
    assert text.count('<th class="printed" scope="col"') == 2


def make_partial_table() -> Table:
    """A column with a metric of its own."""
    columns = (
        Column("MUTAG"),
        Column("DD", {"dataset": "DD"}, metric="top5"),
        Column("huge"),
    )
    return make_table(columns=columns)


@pytest.fixture
def partial() -> Measured:
    records = [
        record_of(cell, 80.0 + cell.seed, metrics={"accuracy": 80.0 + cell.seed, "top5": 95.0})
        for cell in make_partial_table().cells("paper")
    ]
    return measure(make_partial_table(), "paper", records, {})


def test_a_column_shows_its_own_metric(partial: Measured) -> None:
    assert dict(found(partial, "MMCL", "MUTAG").values) == {0: 80.0, 1: 81.0, 2: 82.0}
    assert dict(found(partial, "MMCL", "DD").values) == {0: 95.0, 1: 95.0, 2: 95.0}
    assert "accuracy in MUTAG, huge; top5 in DD (%), mean ±" in markdown(partial)
    lines = list(csv.DictReader(io.StringIO(csv_text(partial))))
    assert {line["column"]: line["metric"] for line in lines} == {
        "MUTAG": "accuracy",
        "DD": "top5",
        "huge": "accuracy",
    }
    page = html([partial])
    heads = [page.count(f'<th scope="col">{name}</th>') for name in ("accuracy", "top5")]
    assert heads == [2 * len(TABLE.rows), len(TABLE.rows)]


def test_a_record_without_the_metric_of_its_column_does_not_count() -> None:
    table = make_partial_table()
    (cell,) = table.cells("paper", row="MMCL", column="DD", seeds=(0,))
    measured = measure(table, "paper", [record_of(cell, 99.0)], {})
    assert found(measured, "MMCL", "DD").missing[0] == "failed: the result has no finite top5"


@pytest.mark.parametrize(("end", "said"), [("", False), (" approximate", True)])
def test_approximate_copies_of_data_are_named_below_the_table(end: str, said: bool) -> None:
    (cell,) = TABLE.cells("paper", row="MMCL", column="MUTAG", seeds=(0,))
    record = record_of(cell, 80.0)
    record = dataclasses.replace(
        record, environment={**record.environment, "data": {"MUTAG": "ab" * 32 + end}}
    )
    measured = measure(TABLE, "paper", [record], {})
    for text in (markdown(measured), " ".join(Page(html([measured])).words)):
        assert ("Measured on approximate copies" in text) is said
        assert ("MUTAG: 1 records" in text) is said


def make_figure(**changes: Any) -> Table:
    """A figure: its paper prints none of the numbers that it plots."""
    return make_table(
        name="figure-3",
        rows=(Row("GraphCL", {"loss": "nce"}), Row("MMCL", {"loss": "mmcl"})),
        published=Published("MMCL, Figure 3", "Curves", columns=(), rows={}),
        references=(),
        **changes,
    )


def test_a_figure_says_that_the_paper_prints_no_numbers() -> None:
    table = make_figure()
    records = [
        record_of(cell, 80.0 + cell.seed + 5 * (cell.row == "MMCL"))
        for cell in table.cells("paper")
    ]
    measured = measure(table, "paper", records, {})
    cell = found(measured, "MMCL", "DD")
    assert (cell.published, cell.difference) == (None, None)
    assert [judged.verdict.kind for judged in measured.verdicts] == ["same direction"] * 2
    sentence = "MMCL, Figure 3: the paper prints no numbers for this."
    page = Page(html([measured]))
    words = " ".join(" ".join(page.words).split())
    assert page.open == []
    # Who has a row is told by printed rows alone: without any, none is called ours.
    for text in (shown(measured), markdown(measured), latex(measured), words):
        flat = " ".join(text.split())
        assert sentence in flat
        assert "86.00" in flat
        assert "copied from MMCL" not in flat
        assert "Lines marked published" not in flat
        assert "Lines marked *published*" not in flat
        assert "ours (not in paper)" not in flat
    main = html([measured]).split("<main>")[1]
    main = main.replace("measured beside published</caption>", "")
    assert 'class="tag"' not in main
    assert "published" not in main.replace(NO_NUMBERS, "").replace("no published gain", "")
    lines = list(csv.DictReader(io.StringIO(csv_text(measured))))
    assert {line["ours"] for line in lines} == {"no"}
    assert {line["published_mean"] for line in lines} == {""}


def test_pictures_stand_with_their_table_and_are_linked_from_the_others(tmp_path: Path) -> None:
    folder = tmp_path / "graph/mmcl/figures"
    folder.mkdir(parents=True)
    names = ("figure-3.png", "figure-3-a b.png", "figure-31.png", "table-4.png", "table-4.pdf")
    for name in names:
        (folder / name).touch()
    figures = read_figures(tmp_path, make_figure(), "paper")
    assert figures == ("figure-3-a b.png", "figure-3.png", "figure-31.png", "table-4.png")
    assert read_figures(tmp_path, make_figure(), "short") == ()
    measured = [measure(each, "paper", [], {}, figures) for each in (TABLE, make_figure())]
    files.write(tmp_path, measured[1])
    lines = (tmp_path / "graph/mmcl/figure-3.md").read_text(encoding="utf-8").splitlines()
    assert [line for line in lines if "png" in line] == [
        "![figure-3-a b.png](figures/figure-3-a%20b.png)",
        "![figure-3.png](figures/figure-3.png)",
        "Other figures of this paper: [figure-31.png](figures/figure-31.png), "
        "[table-4.png](figures/table-4.png).",
    ]
    page = Page(html(measured))
    assert page.open == []
    up = "../../graph/mmcl/figures/"
    assert page.sources == [
        f"{up}table-4.png",
        f"{up}figure-3-a%20b.png",
        f"{up}figure-3.png",
    ]
    assert [link for link in page.links if "figures" in link] == [
        f"{up}figure-3-a%20b.png",
        f"{up}figure-3.png",
        f"{up}figure-31.png",
        f"{up}figure-31.png",
        f"{up}table-4.png",
    ]
    short = measure(make_figure(), "short", [], {}, ("figure-3.png",))
    assert 'src="../../short/graph/mmcl/figures/figure-3.png"' in html([short])


def test_numbers_measured_without_all_data_are_named() -> None:
    whole, partial = records_of("MMCL", "MUTAG", {0: 88.0, 1: 89.0})
    partial = dataclasses.replace(
        partial, environment=partial.environment | {"allow_missing": True}
    )
    measured = measure(TABLE, "paper", [whole, partial], {})
    heading = "Measured with --allow-missing: files that were missing or broken left out"
    for text in (markdown(measured), html([measured])):
        remarks = text[text.index(heading) :].split("**Published")[0].split("</ul>")[0]
        assert "graph/mmcl/table-4/mmcl/mutag/seed-1" in remarks
        assert "seed-0" not in remarks
    assert heading not in markdown(measure(TABLE, "paper", [whole], {}))


def test_records_round_trip(tmp_path: Path) -> None:
    foreign = dataclasses.replace(RECORDS[0], address="graph/other/table-1/a/b/seed-0")
    stale = dataclasses.replace(RECORDS[0], config={})
    measured = measure(TABLE, "paper", [*reversed(RECORDS), foreign, stale], STATUS)
    files.write(tmp_path, measured)
    folder = tmp_path / "graph" / "mmcl"
    assert sorted(file.name for file in folder.iterdir()) == [
        "table-4.csv",
        "table-4.md",
        "table-4.records.jsonl",
        "table-4.tex",
    ]
    assert (folder / "table-4.md").read_text(encoding="utf-8") == markdown(measured)
    read = read_records(tmp_path)
    assert [record.address for record in read] == sorted(record.address for record in RECORDS)
    assert {record.address: record for record in read} == {r.address: r for r in RECORDS}
    assert measure(TABLE, "paper", read, STATUS) == measured


def test_short_tier_has_its_own_folder(tmp_path: Path) -> None:
    record = record_of(cell_of("MMCL", "MUTAG", 0, "short"), 70.0)
    measured = measure(TABLE, "short", [record, *RECORDS], {})
    files.write(tmp_path, measured)
    assert [path.name for path in tmp_path.iterdir()] == ["short"]
    assert read_records(tmp_path) == [record]
    assert (tmp_path / "short" / "graph" / "mmcl" / "table-4.md").exists()


def test_a_stale_record_is_kept_in_results(tmp_path: Path) -> None:
    stale = dataclasses.replace(RECORDS[0], config={})
    measured = measure(TABLE, "paper", [stale], {})
    files.write(tmp_path, measured)
    assert read_records(tmp_path) == [stale]
    assert "stale: measured with another configuration" in markdown(measured)


def test_a_broken_record_names_file_and_line(tmp_path: Path) -> None:
    file = tmp_path / "table-4.records.jsonl"
    file.write_text(record_line(RECORDS[0]) + '{"addr')
    with pytest.raises(UserError, match=r"table-4\.records\.jsonl, line 2"):
        read_records(tmp_path)


def test_further_metrics_of_the_same_runs_have_grids_of_their_own() -> None:
    table = make_table(also=("knn", "unknown"))
    records = [
        record_of(
            cell_of("GraphCL", "MUTAG", seed),
            value,
            metrics={"accuracy": value, "knn": value - 50},
        )
        for seed, value in GRAPHCL.items()
    ]
    records += records_of("MMCL", "MUTAG", MMCL)  # these have no such metric
    measured = measure(table, "paper", records, {})
    (grid,) = also_of(measured)
    assert not isinstance(grid, Published)  # nobody published them
    assert (grid.metric, grid.columns) == ("knn", ("MUTAG",))
    assert grid.rows == {"GraphCL": (summarise([36.0, 37.0, 38.0]),)}
    text = markdown(measured)
    assert "**Measured here, too.** knn: of the same runs (%)" in text
    assert "| GraphCL | 37.00 ± 1.00 |" in text
    page = " ".join(Page(html([measured])).words)
    assert "Measured here, too" in page
    assert "37.00 ± 1.00" in page


def test_rows_that_lack_all_their_seeds_stand_together_in_the_legend() -> None:
    once = dataclasses.replace(TABLE.rows[2], seeds=(0,))
    table = make_table(rows=(*TABLE.rows[:2], once))
    assert legend_of(measure(table, "paper", [], {})) == ["(1) every cell: not run"]
    started = records_of("GraphCL", "MUTAG", {0: 86.0})
    assert legend_of(measure(table, "paper", started, {})) == [
        f"(1) MUTAG (seeds 1-2 of GraphCL); MUTAG (MMCL, {OURS}); DD (all rows): not run"
    ]


def test_many_seeds_are_named_by_their_ends() -> None:
    table = make_table(seeds={"paper": tuple(range(20)), "short": (0, 1), "smoke": (0,)})
    assert "over seeds 0-19;" in headline(measure(table, "paper", [], {}))
    assert "over seeds 0-1;" in headline(measure(table, "short", [], {}))
    later = make_table(seeds={"paper": tuple(range(20, 44)), "short": (0, 2, 4, 6, 8, 10)})
    assert "over seeds 20-43;" in headline(measure(later, "paper", [], {}))
    assert "over seeds 0, 2, 4, 6, 8, 10;" in headline(measure(later, "short", [], {}))


def make_aggregated_table() -> Table:
    return make_table(aggregates=("interquartile mean",))


def over_all_columns(text: str) -> list[list[str]]:
    """The cells of the small table below its heading in Markdown."""
    lines = text[text.index("**Over all columns.**") :].split("\n\n")[1].splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_rows_are_summed_up_over_all_columns() -> None:
    table = make_aggregated_table()
    records = [
        *RECORDS,
        *records_of("MMCL", "DD", {0: 70.0, 1: 71.0, 2: 72.0}),
        *records_of("GraphCL", "DD", {2: 79.0}),
    ]
    measured = measure(table, "paper", records, {})
    # "ours" has no seed in DD, so it is left out.
    head, _, *lines = over_all_columns(markdown(measured))
    assert head == ["method", "interquartile mean", "95% interval", "values"]
    graphcl, mmcl = lines
    # Of 78, 79, 86, 87, 88 and of 70, 71, 72, 87.9, 89, 90.1 one value is cut at each end.
    assert (graphcl[0], graphcl[1], graphcl[3]) == ("GraphCL", "84.00", "5 of 6")
    assert (mmcl[0], mmcl[1], mmcl[3]) == ("MMCL", f"{(71 + 72 + 87.9 + 89) / 4:.2f}", "6")
    low, high = map(float, mmcl[2].strip("\\[]").split(","))
    assert 70 < low < float(mmcl[1]) < high < 90.1
    text = shown(measured)
    assert max(map(len, text.splitlines())) <= 100
    assert " ".join(mmcl).replace("\\", "") in " ".join(text.split())
    page = Page(html([measured]))
    assert page.open == []
    assert " ".join(mmcl).replace("\\", "") in " ".join(" ".join(page.words).split())
    assert "Over all columns" not in markdown(measure(TABLE, "paper", records, {}))
    again = measure(table, "paper", records, {})
    assert markdown(again) == markdown(measured)


def test_an_aggregate_of_single_seeds_has_no_interval() -> None:
    table = make_aggregated_table()
    records = [*records_of("MMCL", "DD", {0: 70.0}), *records_of("MMCL", "MUTAG", {0: 88.0})]
    measured = measure(table, "paper", records, {})
    _, _, line = over_all_columns(markdown(measured))
    assert line == ["MMCL", "79.00", "none, a column has one seed", "2 of 6"]
    assert "none, a column has one seed" in shown(measured)
    assert "none, a column has one seed" in html([measured])
    assert "Over all columns" not in shown(measure(table, "paper", [], {}))


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"aggregates": ("median",)}, "no aggregate 'median'; known are: interquartile mean"),
        (
            {"columns": (Column("MUTAG"), Column("DD", {"dataset": "DD"}, metric="knn"))},
            "an aggregate over columns of different metrics",
        ),
    ],
)
def test_aggregates_that_make_no_sense_are_refused(changes: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        dataclasses.replace(make_aggregated_table(), **changes)


def test_with_aggregates_every_verdict_says_how_many_seeds_would_do() -> None:
    needed = "2 seeds would see the published gain with 80% power."
    vague = {0: 86.0, 1: 89.0, 2: 89.5}
    table = make_aggregated_table()
    reproduced = measure(table, "paper", RECORDS, {})
    assert needed in markdown(reproduced)
    assert needed in " ".join(shown(reproduced).split())
    assert needed in html([reproduced])
    # A verdict that says it anyway says it once.
    records = [*records_of("GraphCL", "MUTAG", GRAPHCL), *records_of("MMCL", "MUTAG", vague)]
    measured = measure(table, "paper", records, {})
    assert measured.verdicts[0].verdict.kind == "inconclusive"
    assert markdown(measured).count("would see the published gain") == 1
    # Where nothing ran the printed deviations tell, in the terminal, too.
    idle = measure(table, "paper", [], {})
    seeds = "13 seeds would see the published gain with 80% power, from the printed deviations"
    assert seeds in markdown(idle)
    assert seeds in " ".join(shown(idle).split())
    for records in (RECORDS, []):
        assert "would see" not in markdown(measure(TABLE, "paper", records, {}))
