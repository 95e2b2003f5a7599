"""Rows of a table beside each other: one comparison with a baseline, as files to publish.

Each row is compared with the baseline in each column by both analyses of ``docs/claims.md``; the
p values of all rows and columns are adjusted together by Holm's procedure.
"""

import csv
import dataclasses
import functools
import io
import itertools
import json
import re
import statistics
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from shared.experiment.config import slug
from shared.experiment.files import write_atomically
from shared.experiment.frame import NOT_RUN, processor_of
from shared.experiment.records import RECORDS, Record, record_line
from shared.experiment.run_folders import WATCHED
from shared.experiment.tables import Column, Tier
from shared.report import pictures
from shared.report.claims import column_model
from shared.report.files import ACROSS, SHORT_COMMIT, commit_name, page, tex_escaped, tex_table
from shared.report.measuring import finite_values
from shared.report.pictures import BLUE, GREEN, GREY, RED, Curves, Panel, Picture, Point, narrow
from shared.report.statistics import LEVEL, ColumnModel, Summary, holm, summarise, wider
from shared.report.wording import (
    DASH,
    LOOKED,
    LOOKED_NOTE,
    TIER_NOTES,
    Grid,
    Spread,
    counted,
    gain_text,
    metric_text,
    named_seeds,
    summary_text,
)

GAINS, CURVES = "gains.png", "curves.pdf"  # the first is written as PDF as well
TABLE, TEX, SHEET, METHODS = "table.md", "table.tex", "table.csv", "METHODS.md"
# The files in the folder of a comparison, all replaced when it is written again.
WRITTEN = (TABLE, TEX, SHEET, METHODS, GAINS, str(Path(GAINS).with_suffix(".pdf")), CURVES)
KEPT = "records"  # the folder of the records, and of those that others have sent
RULES = (
    "Of a gain's estimates, the largest p value is shown, adjusted by Holm's procedure over all "
    "lines, and the widest interval, not adjusted."
)
TWICE = {  # by whether all rows of a seed share its data
    False: "a t test with the residual of all rows and Welch's t test",
    True: "a linear model with rows and seeds as factors and paired differences",
}
ONCE = "once, by Welch's t test, or by a one-sample t test where the baseline has no spread"
COLOURS = {"better": GREEN, "worse": RED, "open": BLUE}
PAPERS = Path(__file__).with_name("papers.bib")
# By function of an objective, the key of its paper in PAPERS.
CITED: Mapping[str, str] = {
    "info_nce": "simclr",
    "debiased_nce": "dcl",
    "hard_nce": "hcl",
    "distance_polarization": "lmcl",
    "max_margin": "mmcl",
    "margin_nce": "margins",
    "alignment": "byol",
    "swapped_prediction": "swav",
}
# What InfoNCE stands for by domain or method; elsewhere for SimCLR.
FRAMEWORKS = {
    "graph": "graphcl",
    "text": "quickthoughts",
    "rl": "curl",
    "moco": "moco",
    "moco_v2": "moco",
    "moco_v3": "mocov3",
    "cmc": "cmc",
}
PROJECTION = "cllr"  # the key of the paper of an objective's projection
HOLM = "holm"
# In a log, what is drawn over the training beside the watched scores: the loss, and in rl its loss
# and the return.
DRAWN = ("loss", "contrastive_loss", "evaluation")
# Of a configuration, what says how long and on how much it trains.
BUDGET = ("epochs", "steps", "environment_steps", "batch_size", "backbone", "network", "images")


@dataclass(frozen=True)
class ComparisonRow:
    """A row of a comparison."""

    label: str  # unique in the comparison
    about: str = ""  # what it is, in a few words; empty for a row as declared
    baseline: bool = False  # whether nothing is learned in it
    majority: bool = False  # whether it predicts the largest class


@dataclass(frozen=True)
class Source:
    """Where a number comes from."""

    record: Record
    origin: str  # "run here", or where its record was found
    log: Path | None = None  # of the run; None where only its record is known


@dataclass(frozen=True)
class Number:
    """One row in one column."""

    metric: str  # key of the result that is shown
    unit: str
    sources: Mapping[int, Source] = field(default_factory=dict)  # by seed, the finished runs
    missing: Mapping[int, str] = field(default_factory=dict)  # by seed, why there is none

    def read(self, metric: str = "") -> dict[int, float]:
        """By seed the metric, or another one of the same runs, where they have it."""
        records = {seed: source.record for seed, source in self.sources.items()}
        return finite_values(records, metric or self.metric)

    @property
    def records(self) -> list[Record]:
        """Those of the finished runs."""
        return [source.record for source in self.sources.values()]

    @property
    def lacking(self) -> str:
        """The word for a number without a finished run: whether any was tried."""
        tried = any(not why.startswith(NOT_RUN) for why in self.missing.values())
        return "failed" if tried else NOT_RUN

    @property
    def failed(self) -> list[int]:
        """The seeds whose runs have failed."""
        return [seed for seed, why in self.missing.items() if why.startswith("failed")]

    @property
    def summary(self) -> Summary | None:
        """Of the metric over the seeds; None without any."""
        values = self.read().values()
        return summarise(values) if values else None


@dataclass(frozen=True)
class Gain:
    """A row compared with the baseline in a column."""

    # "better", "worse", "open", "one seed", "collapsed", "failed", "not run"; empty for the
    # baseline.
    word: str = ""
    why: str = ""  # what an open word says nothing about; empty otherwise
    gain: float | None = None  # difference of the means, of the estimate with the wider interval
    low: float | None = None  # lower end of that 95% interval; None without one
    high: float | None = None  # its upper end
    p: float | None = None  # the larger p value of the estimates
    adjusted: float | None = None  # the same after Holm's adjustment over all rows and columns
    models: tuple[str, ...] = ()  # how it was estimated


@dataclass(frozen=True)
class Comparison:
    """Rows beside a baseline, in the columns of one table."""

    address: str  # ``domain/paper/table`` of the table that the rows are from
    title: str  # of the table
    tier: Tier
    changed: tuple[str, ...]  # the settings that a user has changed in every row, as text
    data: str  # what was trained and scored on
    protocol: str  # name and version of the evaluation protocol
    against: str  # label of the baseline
    rows: tuple[ComparisonRow, ...]
    columns: tuple[Column, ...]
    numbers: Mapping[tuple[str, str], Number]  # by row and column
    # Further metrics of the runs that are shown, with their units.
    also: Mapping[str, str] = field(default_factory=dict)
    blocked: bool = False  # whether all rows of a seed share its data
    # Rows and columns some of whose seeds were declared after others had been seen.
    looked: Collection[tuple[str, str]] = ()

    @property
    def records(self) -> tuple[Record, ...]:
        """The records of all numbers, one per address, sorted by address."""
        by_address = {
            record.address: record for number in self.numbers.values() for record in number.records
        }
        return tuple(by_address[address] for address in sorted(by_address))

    @property
    def scale(self) -> str:
        """Tier and changed settings: never the tier alone where anything was set."""
        changed = f", changed by {', '.join(self.changed)}" if self.changed else ""
        return f"{self.tier} tier{changed}"

    @functools.cached_property
    def gains(self) -> dict[tuple[str, str], Gain]:
        """By row and column, the comparison with the baseline; all p values are one family."""
        gains = {
            (label, column.label): gain
            for column in self.columns
            for label, gain in self._gains_in(column)
        }
        p_values = {key: gain.p for key, gain in gains.items() if gain.p is not None}
        for key, adjusted in zip(p_values, holm(list(p_values.values())), strict=True):
            gains[key] = _with_word(gains[key], adjusted)
        return gains

    def _gains_in(self, column: Column) -> Iterator[tuple[str, Gain]]:
        """Label and gain of each row in a column, before p values are adjusted."""
        numbers = {row.label: self.numbers[row.label, column.label] for row in self.rows}
        values = {label: number.read() for label, number in numbers.items()}
        model = column_model(
            values,
            {label: number.records for label, number in numbers.items()},
            baselines={row.label for row in self.rows if row.baseline},
            majority=[row.label for row in self.rows if row.majority and column.classes],
            blocked=self.blocked,
        )
        for row in self.rows:
            if row.label != self.against:
                yield row.label, self._gain(row.label, column.label, values, model)
            elif not values[row.label]:
                yield row.label, Gain(numbers[row.label].lacking)
            else:
                yield row.label, Gain("collapsed" if row.label in model.collapsed else "")

    def _gain(
        self, label: str, column: str, values: Mapping[str, Mapping[int, float]], model: ColumnModel
    ) -> Gain:
        """The comparison of one row, open until its p value is adjusted."""
        of_row, of_baseline = values[label], values[self.against]
        if not of_row:
            return Gain(self.numbers[label, column].lacking)
        if not of_baseline:
            return Gain("open", f"{self.against} has no number")
        gain = summarise(of_row.values()).mean - summarise(of_baseline.values()).mean
        for name in (label, self.against):
            if name in model.collapsed:
                return Gain("collapsed", f"{name} has collapsed", gain)
        estimates = model.estimates(label, self.against)
        if not estimates:
            if min(len(of_row), len(of_baseline)) < 2:
                return Gain("one seed", "a row with one seed has no interval", gain)
            return Gain("open", "a row has no spread over its seeds", gain)
        widest = wider(estimates)
        low, high = widest.interval
        p = max(estimate.p_value() for estimate in estimates)
        models = tuple(estimate.model for estimate in estimates)
        return Gain("open", "", widest.gain, low, high, p, None, models)


def _with_word(gain: Gain, adjusted: float) -> Gain:
    """The gain with its word, by the adjusted p value."""
    word = "open"
    if adjusted < LEVEL:
        word = "better" if (gain.gain or 0.0) > 0 else "worse"
    return dataclasses.replace(gain, word=word, adjusted=adjusted)


def main_grid(comparison: Comparison, spread: Spread = "deviation") -> Grid:
    """The numbers: a line for each row, the main metric of each column."""
    head = ("method", *(column.label for column in comparison.columns))
    return Grid("", head, _lines(comparison, comparison.columns, "", spread))


def further_grids(comparison: Comparison, spread: Spread = "deviation") -> Iterator[Grid]:
    """The further metrics of the same runs, a grid for each that a run has."""
    for metric, unit in comparison.also.items():
        columns = {
            name: column
            for name, column in _columns_by_run(comparison).items()
            if any(
                comparison.numbers[row.label, column.label].read(metric) for row in comparison.rows
            )
        }
        if columns:
            heading = f"{metric_text(metric, unit)}, of the same runs"
            lines = _lines(comparison, columns.values(), metric, spread)
            yield Grid(heading, ("method", *columns), lines)


def gain_grid(comparison: Comparison) -> Grid:
    """A line for each row and column: the gain over the baseline, its p value and its word."""
    several = len(comparison.columns) > 1
    lines = []
    for row in comparison.rows:
        for column in comparison.columns:
            gain = comparison.gains[row.label, column.label]
            if row.label == comparison.against:
                continue
            p = DASH if gain.adjusted is None else p_text(gain.adjusted)
            text = (gain_text(gain.gain, gain.low, gain.high), p)
            word = f"{gain.word} ({gain.why})" if gain.why else gain.word
            seeds = _seed_counts(comparison, row.label, column.label)
            names = (row.label, *(column.label,) * several)
            lines.append((*names, *text, word, seeds, " and ".join(gain.models)))
    head = ("method", *("column",) * several, "gain, 95% interval", "p after Holm")
    head += (f"against {comparison.against}", "seeds", "estimates")
    return Grid(f"Against {comparison.against}", head, tuple(lines))


def cost_grid(comparison: Comparison) -> Grid:
    """Lines of time and memory of a run, processor, and origin; columns may share their runs."""
    lines = []
    for row in comparison.rows:
        for name, column in _columns_by_run(comparison).items():
            number = comparison.numbers[row.label, column.label]
            records = number.records
            if not records:
                continue
            seconds = statistics.median(float(record.result["seconds"]) for record in records)
            memory = max(float(record.result["peak_memory_bytes"]) for record in records) / 1e9
            device = max(
                record.environment.get("peak_device_memory_bytes", 0) for record in records
            )
            size = f"{memory:.1f}" + f" + {device / 1e9:.1f} on the device" * bool(device)
            names = ", ".join(sorted(set(map(processor_of, records))))
            lines.append((row.label, name, f"{seconds:.0f}", size, names, origins(number)))
    head = ("method", "column", "seconds a run", "GB", "on", "seeds")
    return Grid("Time, memory, origin", head, tuple(lines))


def origins(number: Number) -> str:
    """Which seeds come from where: ``seeds 0-2 run here; seed 3 recorded at 391a9aa``."""
    seeds_by_origin: dict[str, list[int]] = {}
    for seed, source in sorted(number.sources.items()):
        seeds_by_origin.setdefault(source.origin, []).append(seed)
    for seed, why in sorted(number.missing.items()):
        seeds_by_origin.setdefault(why, []).append(seed)
    return "; ".join(f"{named_seeds(seeds)} {origin}" for origin, seeds in seeds_by_origin.items())


def headline(comparison: Comparison, spread: Spread = "deviation") -> str:
    """What the numbers are: data, metric, budget, seeds, protocol, comparison, commit."""
    metrics = dict.fromkeys(
        metric_text(number.metric, number.unit) for number in comparison.numbers.values()
    )
    what = "± standard deviation" if spread == "deviation" else "[95% interval]"
    mean = f"mean {what} over " if _has_spread(comparison) else ""
    sentences = [
        f"{comparison.title} ({comparison.scale}), on {comparison.data}: "
        f"{' and '.join(metrics)}, {mean}{_seeds(comparison)}."
    ]
    if failed := failures(comparison):
        sentences.append(f"Failed: {failed}.")
    if trained := budget(comparison):
        sentences.append(f"Budget: {trained}.")
    sentences.append(f"Protocol {comparison.protocol}.")
    if tests := _tests(comparison):
        sentences.append(
            f"Bold: better than {comparison.against} (p < {LEVEL} after Holm's adjustment over "
            f"{counted(tests, 'comparison')}, by each analysis)."
        )
    sentences.append(f"Commit {commits(comparison)}.")
    if comparison.looked:
        sentences.append(LOOKED_NOTE)
    return " ".join(sentences)


def failures(comparison: Comparison) -> str:
    """The seeds that no number holds since their runs failed, by row; empty without any."""
    return _named(comparison, lambda number: number.failed)


def other_sources(comparison: Comparison) -> list[str]:
    """Sentences on seeds that ran another source of their loss than their configuration names."""
    pairs = dict.fromkeys(pair for record in comparison.records for pair in _same_loss(record))
    sentences = []
    for pair in pairs:
        ran, named = (identity.rpartition("@")[2][:SHORT_COMMIT] for identity in pair)
        seeds = _named(comparison, functools.partial(_joined_by, pair))
        sentences.append(
            f"The source of the loss that {seeds} ran has the SHA-256 {ran}, their configuration "
            f"names {named}: --same-loss took the two as the same on the user's word, unchecked."
        )
    return sentences


def _same_loss(record: Record) -> Iterator[tuple[str, str]]:
    """The identity of the loss that ran and that of the configuration, where they differ."""
    objective = record.config.get("objective")
    function = objective["loss"]["function"] if isinstance(objective, Mapping) else None
    for text in record.environment.get("facts", {}).get("same_loss", "").split(", "):
        ran, _, named = text.partition(" for ")
        if ran and named == function:  # it names those of all rows of the command
            yield ran, named


def _joined_by(pair: tuple[str, str], number: Number) -> list[int]:
    """The seeds whose runs hold such a pair of identities."""
    return [seed for seed, source in number.sources.items() if pair in _same_loss(source.record)]


def budget(comparison: Comparison) -> str:
    """How long and on how much the rows train, where all agree."""
    configs = [record.config for record in comparison.records if record.config.get("train", True)]
    texts = []
    for name in BUDGET:
        values = {json.dumps(config[name]) for config in configs if config.get(name) is not None}
        if len(values) == 1:
            texts.append(f"{name.replace('_', ' ')} {values.pop().strip(chr(34))}")
    return ", ".join(texts)


def commits(comparison: Comparison) -> str:
    """The commits of the runs, the first characters of each."""
    names = {commit_name(record, " with changes") for record in comparison.records}
    return ", ".join(sorted(names)) or "none"


def remarks(comparison: Comparison) -> list[str]:
    """What a reader has to know of the numbers, a sentence each."""
    sentences = [f"{row.label}: {row.about}." for row in comparison.rows if row.about]
    sentences += other_sources(comparison)
    if note := TIER_NOTES[comparison.tier]:
        sentences.append(note)
    for column in comparison.columns:
        for row in comparison.rows:
            if (number := comparison.numbers[row.label, column.label]).missing:
                missing = origins(dataclasses.replace(number, sources={}))
                sentences.append(f"{column.label}, no number: {row.label}: {missing}.")
        sentences += _differing(comparison, column)
        sentences += _equal(comparison, column)
    return sentences


def _differing(comparison: Comparison, column: Column) -> Iterator[str]:
    """Sentences on rows of a column that were measured on other data or other processors."""
    numbers = [comparison.numbers[row.label, column.label] for row in comparison.rows]
    processors = {processor_of(record) for number in numbers for record in number.records}
    if names := _differing_data(comparison, column):
        yield f"{column.label}: the files of {', '.join(names)} are not the same in all runs."
    if len(processors) > 1:
        yield (
            f"{column.label}: measured on several processors ({', '.join(sorted(processors))}); "
            f"times are comparable on one only."
        )


def _equal(comparison: Comparison, column: Column) -> Iterator[str]:
    """Sentences on two trained rows of a column that have the same metrics in every common seed.

    Where a loss or a setting takes no effect, that is the first sign.
    """
    trained = [row.label for row in comparison.rows if not row.baseline]
    for first, second in itertools.combinations(trained, 2):
        ones, others = (
            comparison.numbers[label, column.label].sources for label in (first, second)
        )
        common = ones.keys() & others.keys()
        if len(common) > 1 and all(
            ones[seed].record.result["metrics"] == others[seed].record.result["metrics"]
            for seed in common
        ):
            yield (
                f"{column.label}: {first} and {second} have the same metrics in every seed; "
                f"what distinguishes them may take no effect."
            )


def _differing_data(comparison: Comparison, column: Column) -> list[str]:
    """The names of the data whose files are not the same in all runs of a column."""
    hashes: dict[str, set[str]] = {}
    for row in comparison.rows:
        for record in comparison.numbers[row.label, column.label].records:
            for name, digest in record.environment["data"].items():
                hashes.setdefault(name, set()).add(digest)
    hashes.pop("init", None)  # weights that training starts from
    return sorted(name for name, digests in hashes.items() if len(digests) > 1)


def markdown(comparison: Comparison, spread: Spread = "deviation") -> str:
    """The comparison as a page of Markdown."""
    return page("comparison", globals(), comparison=comparison, spread=spread)


def latex(comparison: Comparison, spread: Spread = "deviation") -> str:
    """The numbers as a table of LaTeX; needs the packages booktabs and graphicx.

    With a single column its further metrics stand beside it.
    """
    grid = main_grid(comparison, spread)
    further = list(further_grids(comparison, spread)) if len(comparison.columns) == 1 else []
    head = [*grid.head, *(other.heading.partition(",")[0] for other in further)]
    lines = []
    for index, (label, *texts) in enumerate(grid.lines):
        cells = [
            rf"\textbf{{{text}}}" if _is_better(comparison, label, column.label) else text
            for column, text in zip(comparison.columns, map(tex_escaped, texts), strict=True)
        ]
        cells += [tex_escaped(other.lines[index][1]) for other in further]
        lines.append([tex_escaped(label), *cells])
    # One document may hold several comparisons of a table.
    place = (comparison.tier, comparison.address, *comparison.changed)
    columns = (column.label for column in comparison.columns)
    return tex_table(
        head,
        lines,
        caption=headline(comparison, spread),
        label=" ".join((*place, *columns, comparison.against)),
        column_format="l" + "r" * (len(head) - 1),
    )


def csv_text(comparison: Comparison) -> str:
    """One line per row and column, unrounded, with the value of every seed."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    seeds = _all_seeds(comparison)
    writer.writerow(
        ["table", "tier", "changed", "row", "against", "column", "metric", "unit", "protocol"]
        + ["mean", "sd", "low", "high", "seeds", "gain", "gain_low", "gain_high", "p", "p_holm"]
        + ["outcome", *(f"seed_{seed}" for seed in seeds)]
        + [f"{metric}_mean" for metric in comparison.also]
        + ["seconds", "peak_memory_bytes", "processor", "origin"]
    )
    for row in comparison.rows:
        for column in comparison.columns:
            number = comparison.numbers[row.label, column.label]
            gain = comparison.gains[row.label, column.label]
            summary, values = number.summary, number.read()
            records = number.records
            further = [number.read(metric) for metric in comparison.also]
            seconds = [float(record.result["seconds"]) for record in records]
            writer.writerow(
                [comparison.address, comparison.tier, "; ".join(comparison.changed), row.label]
                + [comparison.against, column.label, number.metric, number.unit]
                + [comparison.protocol]
                + ([summary.mean, summary.sd, summary.low, summary.high] if summary else [None] * 4)
                + [len(values), gain.gain, gain.low, gain.high, gain.p, gain.adjusted, gain.word]
                + [values.get(seed) for seed in seeds]
                + [summarise(read.values()).mean if read else None for read in further]
                + [statistics.median(seconds) if seconds else None]
                + [max((record.result["peak_memory_bytes"] for record in records), default=None)]
                + ["; ".join(sorted(set(map(processor_of, records)))), origins(number)]
            )
    return stream.getvalue()


def forest(comparison: Comparison) -> Picture | None:
    """The gains over the baseline as points with intervals; None without any."""
    panels = []
    for column in comparison.columns:
        number = comparison.numbers[comparison.against, column.label]
        lines: dict[str, list[Point]] = {}
        for row in comparison.rows:
            gain = comparison.gains[row.label, column.label]
            if row.label != comparison.against and gain.gain is not None:
                color = COLOURS.get(gain.word, GREY)
                lines[row.label] = [Point(gain.gain, gain.low, gain.high, color=color)]
        if lines:
            unit = "points" if number.unit == "%" else number.unit
            axis = f"gain in {metric_text(number.metric, unit)}"
            panels.append(Panel(column.label, narrow(axis), lines, 0.0))
    if not panels:
        return None
    shown = {point.color for panel in panels for point in panel.points()}
    empty = {label: () for panel in panels for label in panel.lines}
    panels = [dataclasses.replace(panel, lines=empty | dict(panel.lines)) for panel in panels]
    meanings = {f"{word}, 95% interval": color for word, color in COLOURS.items()}
    meanings |= {"without an interval or an outcome": GREY}
    legend = {meaning: color for meaning, color in meanings.items() if color in shown}
    return Picture(panels, ACROSS, legend, rule=comparison.against)


def learning(comparison: Comparison) -> tuple[list[Curves], list[str]]:
    """Loss and watched scores over the training, and the labels of the rows without a log."""
    panels, lacking = [], []
    for column in comparison.columns:
        curves: dict[str, dict[str, dict[float, list[float]]]] = {}  # by name, row and x
        across = "step"
        for row in comparison.rows:
            number = comparison.numbers[row.label, column.label]
            logs = [log for log in map(_read_log, number.sources.values()) if log is not None]
            if len(logs) < len(number.sources) and not row.baseline:
                lacking.append(row.label)
            for unit, points in logs:
                across = unit
                for x, numbers in points:
                    for name, value in numbers.items():
                        if name in DRAWN or name.startswith(WATCHED):
                            curve = curves.setdefault(name, {}).setdefault(row.label, {})
                            curve.setdefault(x, []).append(value)
        for name, lines in sorted(curves.items()):
            title = f"{column.label}: {name.removeprefix(WATCHED)}"
            panels.append(Curves(title, across, name.removeprefix(WATCHED), lines))
    return panels, list(dict.fromkeys(lacking))


def _read_log(source: Source) -> tuple[str, list[tuple[float, dict[str, float]]]] | None:
    """Unit of x, and numbers by name at each x, from the log of a run; None without one.

    In epochs where the configuration counts them, else in steps.
    """
    if source.log is None or not source.log.exists():
        return None
    lines = []
    for text in source.log.read_text(encoding="utf-8").splitlines():
        with suppress(ValueError, KeyError, TypeError):  # cut off by a kill
            content = json.loads(text)
            numbers = {k: v for k, v in content.items() if k not in ("step", "seconds")}
            lines.append((float(content["step"]), numbers))
    epochs = source.record.config.get("epochs")
    if not lines:
        return None
    if not isinstance(epochs, int):
        return "step", lines
    last = lines[-1][0]
    return "epoch", [(epochs * step / last, numbers) for step, numbers in lines]


def methods(comparison: Comparison, spread: Spread = "deviation") -> str:
    """A paragraph on the set-up with its citations in BibTeX."""
    cited: dict[str, None] = {}
    rows = []
    for row in comparison.rows:
        keys = dict.fromkeys(
            key
            for column in comparison.columns
            for record in comparison.numbers[row.label, column.label].records
            for key in _papers_of(record.config, comparison.address.partition("/")[0])
            if not row.baseline
        )
        cited |= keys
        marks = f" [{', '.join(f'@{key}' for key in keys)}]" if keys else ""
        rows.append(f"{row.label}{marks}{f' ({row.about})' * bool(row.about)}")
    entries = {
        entry.group(1): entry.group(0).strip()
        for entry in re.finditer(r"@\w+{(\w+),.*?\n}\n", PAPERS.read_text("utf-8"), re.DOTALL)
    }
    records = comparison.records
    return page(
        "methods",
        globals(),
        comparison=comparison,
        spread=spread,
        rows=rows,
        trivial=[row.label for row in comparison.rows if row.baseline],
        looked=list(dict.fromkeys(label for label, _ in sorted(comparison.looked))),
        differing=sorted(
            {name for each in comparison.columns for name in _differing_data(comparison, each)}
        ),
        processors=sorted(set(map(processor_of, records))),
        versions=sorted({str(record.environment["versions"].get("torch")) for record in records}),
        entries=[entries[key] for key in cited | {HOLM: None, "suite": None}],
    )


def _papers_of(config: Mapping[str, Any], domain: str) -> Iterator[str]:
    """The keys of the papers of a configuration's losses."""
    objective = config.get("objective") if config.get("train", True) else None
    if not isinstance(objective, Mapping):
        return
    for term in (objective["loss"], *objective.get("penalties", ())):
        key = CITED.get(str(term["function"]))
        if key == "simclr":
            key = FRAMEWORKS.get(domain, FRAMEWORKS.get(str(config.get("method")), key))
        if key is not None:
            yield key
        if key == "byol" and term["numbers"]:  # its curvature
            yield "margins"
    if objective.get("projection"):
        yield PROJECTION


def write(folder: Path, comparison: Comparison, *, spread: Spread = "deviation") -> list[Path]:
    """Write a comparison into a folder, each file atomically, and return the files."""
    texts = {
        TABLE: markdown(comparison, spread),
        TEX: latex(comparison, spread),
        SHEET: csv_text(comparison),
        METHODS: methods(comparison, spread),
        f"{KEPT}/{slug(comparison.address)}{RECORDS}": "".join(
            map(record_line, comparison.records)
        ),
    }
    for name, text in texts.items():
        write_atomically(folder / name, text)
    written = [folder / name for name in texts]
    if picture := forest(comparison):
        pictures.write(folder / GAINS, picture)
        written += [folder / GAINS, (folder / GAINS).with_suffix(".pdf")]
    panels, lacking = learning(comparison)
    if panels:
        figure = pictures.curves(panels, ACROSS)
        caption = "Mean and one standard deviation over seeds."
        if lacking:
            caption += f" No curve, since only records are known: {', '.join(lacking)}."
        pictures.label(figure, f"{comparison.title} ({comparison.scale})", caption)
        pictures.save(figure, folder / CURVES)
        written.append(folder / CURVES)
    else:
        (folder / CURVES).unlink(missing_ok=True)  # of other rows
    return written


def _lines(
    comparison: Comparison, columns: Collection[Column], metric: str, spread: Spread
) -> tuple[tuple[str, ...], ...]:
    """The label of each row with its numbers; an empty metric is the main one of each column."""
    return tuple(
        (row.label, *(_mean_text(comparison, row.label, c.label, metric, spread) for c in columns))
        for row in comparison.rows
    )


def _mean_text(comparison: Comparison, label: str, column: str, metric: str, spread: Spread) -> str:
    values = comparison.numbers[label, column].read(metric).values()
    text = summary_text(summarise(values) if values else None, spread)
    return f"{text} {LOOKED}" if values and (label, column) in comparison.looked else text


def _is_better(comparison: Comparison, label: str, column: str) -> bool:
    return comparison.gains[label, column].word == "better"


def _has_spread(comparison: Comparison) -> bool:
    """Whether any row has two seeds."""
    return any(len(number.read()) > 1 for number in comparison.numbers.values())


def _tests(comparison: Comparison) -> int:
    """How many comparisons p values are adjusted over."""
    return sum(gain.p is not None for gain in comparison.gains.values())


def _columns_by_run(comparison: Comparison) -> dict[str, Column]:
    """By the name of its runs, the first of the columns that share them."""
    columns: dict[str, Column] = {}
    for column in comparison.columns:
        columns.setdefault(column.source, column)
    return columns


def _all_seeds(comparison: Comparison) -> list[int]:
    return sorted({seed for number in comparison.numbers.values() for seed in number.sources})


def _seeds(comparison: Comparison) -> str:
    """The seeds; where rows differ, those of each, in the order of the rows."""
    places_by_seeds: dict[tuple[int, ...], list[str]] = {}
    for row in comparison.rows:
        columns_by_seeds: dict[tuple[int, ...], list[str]] = {}
        for column in comparison.columns:
            seeds = tuple(sorted(comparison.numbers[row.label, column.label].sources))
            if seeds and not row.baseline:
                columns_by_seeds.setdefault(seeds, []).append(column.label)
        for seeds, columns in columns_by_seeds.items():
            where = f" in {', '.join(columns)}" if len(columns_by_seeds) > 1 else ""
            places_by_seeds.setdefault(seeds, []).append(f"{row.label}{where}")
    if len(places_by_seeds) == 1:
        return named_seeds(next(iter(places_by_seeds)))
    texts = (f"{named_seeds(seeds)} ({'; '.join(at)})" for seeds, at in places_by_seeds.items())
    return " and ".join(texts) or named_seeds(_all_seeds(comparison))


def _named(comparison: Comparison, seeds_of: Callable[[Number], Iterable[int]]) -> str:
    """Some seeds of rows, and of which columns if not of all: ``seeds 1, 3 of HCL in MUTAG``."""
    texts = []
    for row in comparison.rows:
        columns_by_seeds: dict[tuple[int, ...], list[str]] = {}
        for column in comparison.columns:
            if seeds := tuple(sorted(seeds_of(comparison.numbers[row.label, column.label]))):
                columns_by_seeds.setdefault(seeds, []).append(column.label)
        for seeds, columns in columns_by_seeds.items():
            where = f" in {', '.join(columns)}" if len(columns) < len(comparison.columns) else ""
            texts.append(f"{named_seeds(seeds)} of {row.label}{where}")
    return "; ".join(texts)


def _seed_counts(comparison: Comparison, label: str, column: str) -> str:
    """The number of seeds of a row, and of the baseline if that has others."""
    of_row, of_baseline = (
        len(comparison.numbers[name, column].read()) for name in (label, comparison.against)
    )
    return str(of_row) if of_row == of_baseline else f"{of_row}, {of_baseline}"


def p_text(value: float) -> str:
    """A p value."""
    return "< 0.0001" if value < 0.0001 else f"{value:.4f}"
