"""Tables are data: rows, columns and claims are declared, checked, and expanded to cells.

A row or a column is a set of changes to a frozen configuration; a cell is one row in one column
with one seed in one tier. The address of a cell names it; its run is found by its configuration.
"""

import copy
import dataclasses
import functools
import itertools
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args

from shared.errors import UserError, suggestion
from shared.experiment.config import (
    USER_TIER,
    Config,
    canonical,
    changed,
    place_of,
    run_key,
    slug,
    with_seed,
)

Tier = Literal["paper", "short", "smoke"]
TIERS: tuple[Tier, ...] = get_args(Tier)
SettingWord = Literal["paper's", "rebuilt", "reduced"]
Form = Literal["superiority", "size", "comparable", "null", "no gain"]
Scope = Literal["each", "every", "most"]
EMBEDDED = "embedded sample"
# The range of a metric by unit; results outside it are refused.
UNITS: Mapping[str, tuple[float, float]] = {
    "%": (0.0, 100.0),
    "% of variance": (-math.inf, 100.0),  # worse than the mean is below 0
    "points of 1000": (0.0, 1000.0),
}


@dataclass(frozen=True)
class Value:
    """A published number: its mean and, where the paper gives one, its spread."""

    mean: float
    std: float | None = None  # standard deviation over runs
    interval: float | None = None  # half the width of a 95% interval within one run


@dataclass(frozen=True)
class Published:
    """The numbers of one published table, as transcribed from the paper."""

    source: str  # the paper and the table it prints
    title: str
    columns: tuple[str, ...]  # labels; none where the paper only plots
    rows: Mapping[str, tuple[Value | None, ...]]  # by label, one number per column
    statistic: str = ""  # what the numbers are: mean over what, deviation of what
    notes: Mapping[str, str] = field(default_factory=dict)  # about rows, by label
    warnings: tuple[str, ...] = ()  # errors in the printed table
    runs: int | None = None  # that a mean is over; None where the paper does not say

    def value(self, row: str, column: str) -> Value | None:
        """The published number of ``row`` in ``column``; None where the paper gives none."""
        if row not in self.rows or column not in self.columns:
            return None
        return self.rows[row][self.columns.index(column)]

    def part(self, columns: Collection[str], rows: Collection[str] | None = None) -> "Published":
        """The published numbers in those of ``columns`` and ``rows`` (None: all) that it has."""
        selected = [column in columns for column in self.columns]
        numbers = {
            label: tuple(itertools.compress(values, selected))
            for label, values in self.rows.items()
            if rows is None or label in rows
        }
        printed = tuple(itertools.compress(self.columns, selected))
        return dataclasses.replace(self, columns=printed, rows=numbers)


@dataclass(frozen=True)
class Row:
    """A method: its label and its changes to the configuration.

    Args:
        label: unique within the table.
        changes: fields of the configuration and their values.
        published: label of the published row that this row measures; None for additional rows.
        deviation: what differs from the paper, and why.
        in_columns: further changes in single columns, by column label, for numbers that a paper
            tunes per dataset.
        seeds: the seeds of a row that does not depend on them; None for those of the tier.
        baseline: whether it is a trivial baseline, in which nothing is learned.
        untrained: whether it is an untrained row; the best of these is the floor of a column.
    """

    label: str
    changes: Mapping[str, Any] = field(default_factory=dict)
    published: str | None = None
    deviation: str = ""
    in_columns: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    seeds: tuple[int, ...] | None = None
    baseline: bool = False
    untrained: bool = False


@dataclass(frozen=True)
class Column:
    """A dataset or task: its label and its changes.

    Args:
        label: unique within the table; the paper's label where it has one.
        changes: fields of the configuration and their values.
        metric: key of the result that the column shows; empty for that of the table.
        run: name shared by the columns that read one run, each its own metric; empty for a column
            with runs of its own.
    """

    label: str
    changes: Mapping[str, Any] = field(default_factory=dict)
    metric: str = ""
    run: str = ""

    @property
    def run_name(self) -> str:
        """The name of its runs."""
        return self.run or self.label


_Labelled = TypeVar("_Labelled", Row, Column)


@dataclass(frozen=True)
class Comparison:
    """Two rows of a table that a claim is about: ``better`` is said to beat, or to equal, ``than``.

    Args:
        method: label of the row whose gain is measured.
        baseline: label of the row that it is compared with.
        columns: labels of the columns.
        tiers: the tiers in which it is measured.
        beside: key of a second metric of the same runs, whose gain is reported where its sign
            differs.
        apart: whether each column is a comparison of its own, since the columns overlap or are not
            data sets but stages or batch sizes; else they are summed up by their mean.
    """

    method: str
    baseline: str
    columns: tuple[str, ...]
    tiers: tuple[Tier, ...] = ("paper", "short")
    beside: str = ""
    apart: bool = False


@dataclass(frozen=True)
class Claim:
    """What a paper claims about its rows, and the comparisons that test it in one table.

    Args:
        id: a stable anchor (``mmcl-table-4``), unique within the suite; several tables may test one
            claim.
        paper: short name of the paper; empty for an additional question of the suite.
        sentence: what the paper says.
        brief: the same in a few words, for tables.
        place: where it says so (``Table 4``, ``text on Figure 4``).
        source: file and phrase of the transcription; empty for a question.
        form: ``superiority`` (the gain is above 0), ``size`` (at least ``size``), ``comparable``
            (above -``margin``), ``null`` (within ``margin`` of 0) or ``no gain`` (below
            ``margin``).
        size: the claimed gain, in units of the metric; for ``size``.
        margin: the largest gain that the claim itself calls no difference, in units of the metric;
            for ``comparable``, ``null`` and ``no gain``.
        scope: what the sentence speaks of: ``every`` column, ``most`` of them, or none of these
            (``each``), where each comparison has its own word.
        data_sets: of a claim that something does not improve consistently, the number of the
            paper's data sets; 0 for any other claim.
        declared: when the claim was committed with its rows, and which of them had been run.
        narrower: in which way it is tested more narrowly than it is worded; empty if it is not.
        note: what a reader has to know of the sentence and of how it is tested.
        readme: whether it stands in the table of the README.
        comparisons: the rows and columns that test it.
    """

    id: str
    paper: str
    sentence: str
    brief: str
    place: str
    source: str
    form: Form
    comparisons: tuple[Comparison, ...]
    size: float | None = None
    margin: float | None = None
    scope: Scope = "each"
    data_sets: int = 0
    declared: str = ""
    narrower: str = ""
    note: str = ""
    readme: bool = False

    @property
    def additional(self) -> bool:
        """Whether it is a question of the suite, which no paper is credited with."""
        return not self.paper


@dataclass(frozen=True)
class Seeds:
    """Seeds of some rows in some columns, where they are not all of the tier's."""

    seeds: tuple[int, ...]  # empty where the rows have no cell in the columns
    columns: tuple[str, ...] = ()  # labels; empty for all
    rows: tuple[str, ...] = ()  # likewise
    tiers: tuple[Tier, ...] = ("paper",)

    def applies_to(self, tier: Tier, row: str, column: str) -> bool:
        """Whether these are the seeds of a row in a column of ``tier``, given by their labels."""
        return (
            tier in self.tiers
            and row in (self.rows or (row,))
            and column in (self.columns or (column,))
        )


@dataclass(frozen=True)
class Setting:
    """How a tier of a table relates to the paper.

    Args:
        word: ``paper's``, ``rebuilt`` (the paper leaves out details that decide the outcome, which
            were filled in) or ``reduced``.
        differences: what differs most from the paper, three sentences at most.
        by_paper: the same for claims of other papers that are judged on the table, and under the
            empty string for additional questions.
        other_data: by paper, what stands in for its data, where the training or the test set is not
            the one that its claims name.
    """

    word: SettingWord
    differences: tuple[str, ...] = ()
    by_paper: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    other_data: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Tuned:
    """A row for which other values of one hyperparameter were tried on held-out data."""

    row: str
    chosen: str  # the row with the chosen value; ``row`` itself if its value stays
    values: tuple[float, ...]  # those tried, in ascending order
    value: float  # the chosen one

    @property
    def at_edge(self) -> bool:
        """Whether the chosen value is the first or the last of those tried."""
        return self.value in (self.values[0], self.values[-1])


@dataclass(frozen=True)
class Cell:
    """One row in one column with one seed in one tier.

    Columns that read one run have cells with one address, which differ only in ``column``. A cell
    that is ``own`` is not of its table: a user has changed its configuration.
    """

    domain: str
    paper: str
    table: str
    row: str
    column: str
    seed: int
    tier: Tier
    config: Config
    run: str = ""
    own: bool = False

    @property
    def table_address(self) -> str:
        """``domain/paper/table``."""
        return f"{self.domain}/{self.paper}/{self.table}"

    @property
    def run_name(self) -> str:
        """The name of its run: its column, or the name that several columns share."""
        return self.run or self.column

    @functools.cached_property
    def address(self) -> str:
        """Its address: ``[own/][tier/]domain/paper/table/row/column/seed-n``."""
        start = [USER_TIER] * self.own + [self.tier] * (self.tier != "paper")
        parts = (self.table_address, slug(self.row), slug(self.run_name), f"seed-{self.seed}")
        return "/".join((*start, *parts))

    @functools.cached_property
    def content(self) -> Mapping[str, Any]:
        """Its configuration in canonical form; do not modify it."""
        content: Mapping[str, Any] = canonical(self.config)
        return content

    @functools.cached_property
    def key(self) -> str:
        """The key of its run, see :func:`run_key`; cells with equal keys share the run."""
        return run_key(self.tier, self.content)

    @property
    def folder(self) -> Path:
        """The folder of its run, below that of all runs, see :func:`place_of`."""
        return Path(USER_TIER * self.own, place_of(self.domain, self.content, self.key))


@dataclass(frozen=True)
class Table:
    """One table of one paper in one domain, checked when it is made.

    Args:
        domain: name of the package that runs the cells.
        paper: short name of the paper (``mmcl``).
        name: address of the table or figure (``table-4``, ``figure-3``).
        title: one line.
        section: where in the paper.
        metric: key of the result that the table shows, in columns that name no other.
        unit: unit of the metric, of ``UNITS``, and of those in ``also`` that ``units`` leaves out.
        protocol: name and version of the evaluation protocol; equals the configuration's.
        config: the configuration that rows and columns change.
        rows: the methods.
        columns: the datasets or tasks.
        seeds: the seeds of each tier; the table does not have a tier without seeds.
        seed_exceptions: for rows or columns with only some of their tier's seeds, or none.
        post_hoc_seeds: by tier and label of a row, the first of its seeds that were declared after
            earlier ones had been seen.
        failed: by what ended them, the seeds that were run and gave no number.
        published: the published numbers; by default there is no paper.
        claims: the claims about it, which ``shared.experiment.published`` fills in.
        settings: by tier how it relates to the paper, if not by default: ``paper's`` in the paper
            tier, ``reduced`` elsewhere, without differences to name.
        chosen_here: labels of rows with a number that the suite chose, not the paper.
        tuned: the rows for which other values of a hyperparameter were tried.
        short: changes of the short tier.
        varies: what changes between repeats of a cell.
        references: published numbers of other papers, shown below the table.
        notes: lines shown under the table.
        also: further metrics of the same runs, shown in small tables of their own.
        units: units of the metrics in ``also`` that differ from ``unit``.
    """

    domain: str
    paper: str
    name: str
    title: str
    section: str
    metric: str
    unit: str
    protocol: str
    config: Config
    rows: tuple[Row, ...]
    columns: tuple[Column, ...]
    seeds: Mapping[Tier, tuple[int, ...]]
    published: Published = Published("", "", columns=(), rows={})
    claims: tuple[Claim, ...] = ()
    short: Mapping[str, Any] = field(default_factory=dict)
    varies: str = "seed"
    references: tuple[Published, ...] = ()
    notes: tuple[str, ...] = ()
    also: tuple[str, ...] = ()
    seed_exceptions: tuple[Seeds, ...] = ()
    post_hoc_seeds: Mapping[Tier, Mapping[str, int]] = field(default_factory=dict)
    failed: Mapping[str, Seeds] = field(default_factory=dict)
    units: Mapping[str, str] = field(default_factory=dict)
    settings: Mapping[Tier, Setting] = field(default_factory=dict)
    chosen_here: tuple[str, ...] = ()
    tuned: tuple[Tuned, ...] = ()

    def __post_init__(self) -> None:
        self._refuse(
            self._faults_of_labels(),
            self._faults_of_metrics(),
            self._faults_of_seeds(),
            self._faults_of_claims(),
            self._faults_of_runs(),
        )

    def _refuse(self, *faults: Iterable[str]) -> None:
        """Raise the first fault, if there is one."""
        for fault in itertools.chain(*faults):
            raise ValueError(f"{self.address}: {fault}")

    def with_claims(self, **judged: Any) -> "Table":
        """The table with other claims and what they are judged by, the fields of these names.

        The cells are those that it has made.
        """
        table = copy.copy(self)
        vars(table).update(judged)
        table._refuse(table._faults_of_claims())
        return table

    @property
    def _labels(self) -> tuple[set[str], set[str]]:
        """The labels of rows and of columns."""
        return {row.label for row in self.rows}, {column.label for column in self.columns}

    def _faults_of_labels(self) -> Iterator[str]:
        for kind, items in (("row", self.rows), ("column", self.columns)):
            slugs = [slug(item.label) for item in items]
            if len(set(slugs)) != len(slugs):
                yield f"two {kind}s share one address: {sorted(slugs)}"
        _, columns = self._labels
        for row in self.rows:
            if missing := set(row.in_columns) - columns:
                yield f"{row.label}: changes in undeclared columns: {sorted(missing)}"
        printed = {row.published for row in self.rows} - {None}
        if odd := printed ^ set(self.published.rows):
            yield f"published rows without a cell, or cells of none: {sorted(map(str, odd))}"
        if missing := set(self.published.columns) - columns:
            yield f"published columns without a cell: {sorted(missing)}"

    def _faults_of_metrics(self) -> Iterator[str]:
        if self.protocol != self.config.protocol:
            yield f"protocol {self.protocol!r} is not the configuration's {self.config.protocol!r}"
        if unknown := {self.unit, *self.units.values()} - UNITS.keys():
            yield f"no unit {', '.join(map(repr, unknown))}; known are: {', '.join(UNITS)}"
        if missing := set(self.units) - set(self.also):
            yield f"units of metrics not in also: {sorted(missing)}"

    def _faults_of_seeds(self) -> Iterator[str]:
        """Seeds of undeclared rows or columns, of no tier, or declared twice."""
        rows, columns = self._labels
        if not self.tiers:
            yield "no tier has seeds"
            return
        common = set.intersection(*(set(self.seeds[tier]) for tier in self.tiers))
        for row in self.rows:
            if unknown := set(row.seeds or ()) - common:
                yield f"{row.label}: seeds {sorted(unknown)} are of no tier"
        for exception in (*self.seed_exceptions, *self.failed.values()):
            if missing := (set(exception.rows) - rows) | (set(exception.columns) - columns):
                yield f"seeds of undeclared rows or columns: {sorted(missing)}"
            for tier in exception.tiers:
                if unknown := set(exception.seeds) - set(self.seeds.get(tier, ())):
                    of = list(exception.columns)
                    yield f"seeds {sorted(unknown)} in {of} are none of the {tier} tier's"
        for tier in self.tiers:
            for row, column in itertools.product(self.rows, self.columns_of(tier)):
                where = tier, row.label, column.label
                if sum(each.applies_to(*where) for each in self.seed_exceptions) > 1:
                    yield f"seeds of {row.label} in {column.label} are declared twice"
        if missing := set(itertools.chain(*self.post_hoc_seeds.values())) - rows:
            yield f"seeds added to undeclared rows: {sorted(missing)}"

    def _faults_of_claims(self) -> Iterator[str]:
        """Claims about undeclared rows, columns or metrics."""
        rows, columns = self._labels
        metrics = {*self.also, *map(self.metric_of, self.columns), ""}
        pairs = [(claim, pair) for claim in self.claims for pair in claim.comparisons]
        for claim, pair in pairs:
            if missing := {pair.method, pair.baseline} - rows:
                yield f"{claim.id}: undeclared rows: {sorted(missing)}"
            if missing := set(pair.columns) - columns:
                yield f"{claim.id}: undeclared columns: {sorted(missing)}"
            if missing := {pair.beside} - metrics:
                yield f"{claim.id}: metrics that the table does not show: {sorted(missing)}"

    def _faults_of_runs(self) -> Iterator[str]:
        for tier in self.tiers:
            configs: dict[tuple[str, str], Config] = {}
            for row, column in itertools.product(self.rows, self.columns_of(tier)):
                for cell in itertools.islice(self._cells_of(tier, row, column, None), 1):
                    config = with_seed(cell.config, 0)  # columns may have other seeds
                    if configs.setdefault((cell.row, cell.run_name), config) != config:
                        yield f"columns of run {cell.run!r} differ in {cell.row}"

    @property
    def address(self) -> str:
        """``domain/paper/table``."""
        return f"{self.domain}/{self.paper}/{self.name}"

    @property
    def tiers(self) -> tuple[Tier, ...]:
        """The tiers of the table: those with seeds."""
        return tuple(tier for tier in TIERS if self.seeds.get(tier))

    def columns_of(self, tier: Tier) -> tuple[Column, ...]:
        """The columns of a tier; the smoke tier has one, its embedded data."""
        return (Column(EMBEDDED),) if tier == "smoke" else self.columns

    def column_of(self, tier: Tier, label: str) -> Column:
        """The column of that label in a tier."""
        return next(column for column in self.columns_of(tier) if column.label == label)

    def seeds_of(self, tier: Tier, row: Row, column: Column) -> tuple[int, ...]:
        """The declared seeds of a row in a column; empty where it has no cell."""
        seeds = self.seeds.get(tier, ())
        for exception in self.seed_exceptions:
            if exception.applies_to(tier, row.label, column.label):
                seeds = exception.seeds
        return tuple(_seeds_of(row, seeds))

    def failure_of(self, cell: Cell) -> str | None:
        """What ended a cell that was run and gave no number, where that is declared."""
        for why, of in self.failed.items():
            if cell.seed in of.seeds and of.applies_to(cell.tier, cell.row, cell.column):
                return why
        return None

    def setting(self, tier: Tier) -> Setting:
        """How a tier relates to the paper."""
        return self.settings.get(tier, Setting("paper's" if tier == "paper" else "reduced"))

    def metric_of(self, column: Column) -> str:
        """Key of the result that ``column`` shows."""
        return column.metric or self.metric

    def unit_of(self, metric: str) -> str:
        """The unit of a metric."""
        return self.units.get(metric, self.unit)

    def cells(
        self,
        tier: Tier = "paper",
        *,
        row: str | Sequence[str] | None = None,
        column: str | Sequence[str] | None = None,
        seeds: Sequence[int] | None = None,
    ) -> tuple[Cell, ...]:
        """The cells of a tier, in the order of the table; none for a tier that it does not have.

        ``row`` and ``column`` are labels or addresses, or lists of such; the printed label of
        several rows, or the name of a shared run, stands for all of them. None: all rows, all
        columns, the declared seeds.
        """
        if tier not in self.tiers:
            return ()
        declared = row is None and column is None and seeds is None
        if declared and tier in self._declared:
            return self._declared[tier]
        rows = _select(self.rows, row, f"{self.address} has no row")
        columns = _select(
            self.columns_of(tier), column, f"{self.address} has in the {tier} tier no column"
        )
        pairs = itertools.product(rows, columns)
        cells = tuple(itertools.chain(*(self._cells_of(tier, *pair, seeds) for pair in pairs)))
        if declared:
            self._declared[tier] = cells
        return cells

    @functools.cached_property
    def _declared(self) -> dict[Tier, tuple[Cell, ...]]:
        """Cache of all cells by tier: a report asks several times for thousands."""
        return {}

    def _cells_of(
        self, tier: Tier, row: Row, column: Column, seeds: Sequence[int] | None
    ) -> Iterator[Cell]:
        """The cells of one row in one column."""
        in_column = row.in_columns.get(column.label, {})
        if tier == "smoke":  # a row defined by column needs its method here, too
            in_column = next(iter(row.in_columns.values()), {})
        # Rows come last: a method's changes override a dataset's.
        changes = {
            **(self.short if tier == "short" else {}),
            **column.changes,
            **row.changes,
            **in_column,
        }
        config = changed(self.config, changes, f"{self.address}: {row.label}")
        config = config.reduced() if tier == "smoke" else config
        wanted: Sequence[int] = self.seeds_of(tier, row, column)
        if seeds is not None and wanted:
            wanted = _seeds_of(row, seeds)
        for seed in wanted:
            yield Cell(
                domain=self.domain,
                paper=self.paper,
                table=self.name,
                row=row.label,
                column=column.label,
                seed=seed,
                tier=tier,
                config=with_seed(config, seed),
                run=column.run,
            )


def _seeds_of(row: Row, wanted: Sequence[int]) -> Sequence[int]:
    """Those of ``wanted`` that the row has."""
    return wanted if row.seeds is None else [seed for seed in row.seeds if seed in wanted]


def _select(
    items: tuple[_Labelled, ...], wanted: str | Sequence[str] | None, error: str
) -> tuple[_Labelled, ...]:
    """The items that are asked for, in the order of the table; all for None.

    ``error`` is how the message on an unknown name begins.
    """
    if wanted is None:
        return items
    selected: list[_Labelled] = []
    for name in [wanted] if isinstance(wanted, str) else wanted:
        # A label, the name of a shared run, or else the printed label of all rows that measure it.
        named = [item for item in items if slug(name) in map(slug, _names(item))] or [
            item
            for item in items
            if isinstance(item, Row) and slug(item.published or "") == slug(name)
        ]
        if not named:
            raise UserError(f"{error} {name!r}{_nearest(name, [item.label for item in items])}")
        selected += named
    return tuple(item for item in items if item in selected)


def _names(item: Row | Column) -> tuple[str, ...]:
    return (item.label,) if isinstance(item, Row) else (item.label, item.run_name)


def _nearest(wanted: str, labels: Sequence[str]) -> str:
    """The end of an error about an unknown label: the nearest ones, else all there are."""
    if containing := [label for label in labels if slug(wanted) and slug(wanted) in slug(label)]:
        return f": did you mean {' or '.join(containing[:4])}?"
    text = suggestion(wanted, labels)
    return text if "?" in text else f"; declared are: {' | '.join(labels)}"
