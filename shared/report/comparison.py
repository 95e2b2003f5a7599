"""Rows of a table beside each other: one comparison with a baseline, as files to publish.

Each row is compared with the baseline in each column by both analyses of ``docs/claims.md``; the
p values of all rows and columns are adjusted together by Holm's procedure.
"""

import csv
import dataclasses
import functools
import io
import json
import math
import re
import statistics
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from shared.experiment.config import slug
from shared.experiment.files import write_atomically
from shared.experiment.frame import NOT_RUN, processor_of
from shared.experiment.records import RECORDS, Record, record_line
from shared.experiment.run import WATCHED
from shared.experiment.tables import Column, Tier
from shared.report import pictures
from shared.report.claims import has_collapsed
from shared.report.files import (
    ACROSS,
    COMMIT,
    page,
    tex_escaped,
    tex_table,
)
from shared.report.pictures import BLUE, GREEN, GREY, RED, Curves, Panel, Picture, Point, narrow
from shared.report.statistics import LEVEL, ColumnModel, Summary, holm, summarise, wider
from shared.report.wording import (
    DASH,
    METRICS,
    TIER_NOTES,
    Grid,
    Spread,
    counted,
    gain_text,
    mean_sd,
    named_seeds,
)

GAINS, CURVES = "gains.png", "curves.pdf"  # the first is written as PDF as well
KEPT = "records"  # the folder of the records, and of those that others have sent
RULES = (
    "Each gain is estimated twice; the p value is the larger of the two, adjusted by Holm's "
    "procedure over all lines, the interval the wider, not adjusted."
)
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
    "alignment": "margins",
}
# What InfoNCE stands for by domain or method; elsewhere for SimCLR.
FRAMEWORKS = {"graph": "graphcl", "text": "quickthoughts", "rl": "curl", "moco": "moco"}
PROJECTION = "cllr"  # the key of the paper of an objective's projection
HOLM = "holm"
# Of a configuration, what says how long and on how much it trains.
BUDGET = ("epochs", "steps", "environment_steps", "batch_size", "backbone", "network", "images")


@dataclass(frozen=True)
class Line:
    """A row of a comparison.

    Args:
        label: unique in the comparison.
        about: what it is, in a few words; empty for a row as declared.
        baseline: whether nothing is learned in it.
        majority: whether it predicts the largest class.
    """

    label: str
    about: str = ""
    baseline: bool = False
    majority: bool = False


@dataclass(frozen=True)
class Source:
    """Where a number comes from.

    Args:
        record: of the run.
        origin: "run here", or where its record was found.
        log: the log of the run; None where only its record is known.
    """

    record: Record
    origin: str
    log: Path | None = None


@dataclass(frozen=True)
class Number:
    """One row in one column.

    Args:
        metric: key of the result that is shown.
        unit: its unit.
        sources: by seed, the finished runs.
        missing: by seed, why there is none.
    """

    metric: str
    unit: str
    sources: Mapping[int, Source] = field(default_factory=dict)
    missing: Mapping[int, str] = field(default_factory=dict)

    def read(self, metric: str = "") -> dict[int, float]:
        """By seed the metric, or another one of the same runs, where they have it."""
        name = metric or self.metric
        found = {seed: s.record.result["metrics"].get(name) for seed, s in self.sources.items()}
        return {
            seed: float(value)
            for seed, value in found.items()
            if isinstance(value, (int, float)) and math.isfinite(value)
        }

    @property
    def lacking(self) -> str:
        """The word for a number without a finished run: whether any was tried."""
        return "failed" if set(self.missing.values()) - {NOT_RUN} else NOT_RUN

    @property
    def summary(self) -> Summary | None:
        """Of the metric over the seeds; None without any."""
        values = self.read().values()
        return summarise(values) if values else None


@dataclass(frozen=True)
class Gain:
    """A row compared with the baseline in a column.

    Args:
        word: "better", "worse", "open", "one seed", "collapsed", "failed", "not run"; empty for the
            baseline.
        why: what an open word says nothing about; empty otherwise.
        gain: difference of the means, of the estimate with the wider interval.
        low: lower end of that 95% interval; None without one.
        high: its upper end.
        p: the larger p value of the estimates.
        adjusted: the same after Holm's adjustment over all rows and columns.
        models: how it was estimated.
    """

    word: str = ""
    why: str = ""
    gain: float | None = None
    low: float | None = None
    high: float | None = None
    p: float | None = None
    adjusted: float | None = None
    models: tuple[str, ...] = ()


@dataclass(frozen=True)
class Comparison:
    """Rows beside a baseline, in the columns of one table.

    Args:
        address: ``domain/paper/table`` of the table that the rows are from.
        title: of the table.
        tier: of the cells.
        changed: the settings that a user has changed in every row, as text.
        data: what was trained and scored on.
        protocol: name and version of the evaluation protocol.
        against: label of the baseline.
        lines: the rows.
        columns: the columns.
        numbers: by row and column.
        also: further metrics of the runs that are shown, with their units.
        blocked: whether all rows of a seed share its data.
    """

    address: str
    title: str
    tier: Tier
    changed: tuple[str, ...]
    data: str
    protocol: str
    against: str
    lines: tuple[Line, ...]
    columns: tuple[Column, ...]
    numbers: Mapping[tuple[str, str], Number]
    also: Mapping[str, str] = field(default_factory=dict)
    blocked: bool = False

    @property
    def records(self) -> tuple[Record, ...]:
        """The records of all numbers, one per address, sorted by address."""
        found = {
            source.record.address: source.record
            for number in self.numbers.values()
            for source in number.sources.values()
        }
        return tuple(found[address] for address in sorted(found))

    @property
    def scale(self) -> str:
        """Tier and changed settings: never the tier alone where anything was set."""
        changed = f", changed by {', '.join(self.changed)}" if self.changed else ""
        return f"{self.tier} tier{changed}"

    @functools.cached_property
    def gains(self) -> dict[tuple[str, str], Gain]:
        """By row and column, the comparison with the baseline; all p values are one family."""
        found = {
            (label, column): gain
            for column in (each.label for each in self.columns)
            for label, gain in self._gains_in(column)
        }
        family = [key for key, gain in found.items() if gain.p is not None]
        p_values = [found[key].p or 0.0 for key in family]
        for key, adjusted in zip(family, holm(p_values), strict=True):
            found[key] = _judged(found[key], adjusted)
        return found

    def _gains_in(self, column: str) -> Iterator[tuple[str, Gain]]:
        numbers = {line.label: self.numbers[line.label, column] for line in self.lines}
        values = {label: number.read() for label, number in numbers.items()}
        largest = [
            summarise(values[line.label].values()).mean
            for line in self.lines
            if line.majority and values[line.label]
        ]
        collapsed = {
            line.label
            for line in self.lines
            if not line.baseline
            and has_collapsed(
                values[line.label],
                [source.record for source in numbers[line.label].sources.values()],
                largest[0] if largest else None,
            )
        }
        model = ColumnModel(
            values,
            baselines={line.label for line in self.lines if line.baseline},
            collapsed=collapsed,
            blocked=self.blocked,
        )
        for line in self.lines:
            if line.label != self.against:
                yield line.label, self._gain(line.label, column, values, model, collapsed)
            elif not values[line.label]:
                yield line.label, Gain(numbers[line.label].lacking)
            else:
                yield line.label, Gain("collapsed" if line.label in collapsed else "")

    def _gain(
        self,
        label: str,
        column: str,
        values: Mapping[str, Mapping[int, float]],
        model: ColumnModel,
        collapsed: set[str],
    ) -> Gain:
        """The comparison of one row, open until its p value is adjusted."""
        mine, other = values[label], values[self.against]
        if not mine:
            return Gain(self.numbers[label, column].lacking)
        if not other:
            return Gain("open", f"{self.against} has no number")
        gain = summarise(mine.values()).mean - summarise(other.values()).mean
        if {label, self.against} & collapsed:
            which = label if label in collapsed else self.against
            return Gain("collapsed", f"{which} has collapsed", gain)
        estimates = model.estimates(label, self.against)
        if not estimates:
            if min(len(mine), len(other)) < 2:
                return Gain("one seed", "a row with one seed has no interval", gain)
            return Gain("open", "a row has no spread over its seeds", gain)
        widest = wider(estimates)
        low, high = widest.interval
        p = max(each.p_value() for each in estimates)
        models = tuple(each.model for each in estimates)
        return Gain("open", "", widest.gain, low, high, p, None, models)


def _judged(gain: Gain, adjusted: float) -> Gain:
    """The gain with its word, by the adjusted p value."""
    word = "open"
    if adjusted < LEVEL:
        word = "better" if (gain.gain or 0.0) > 0 else "worse"
    return dataclasses.replace(gain, word=word, adjusted=adjusted)


def main_grid(comparison: Comparison, spread: Spread = "deviation") -> Grid:
    """The numbers: a line for each row, the main metric of each column."""
    return _grid(comparison, {column.label: "" for column in comparison.columns}, spread)


def further_grids(comparison: Comparison, spread: Spread = "deviation") -> Iterator[Grid]:
    """The further metrics of the same runs, a grid for each that a run has."""
    for metric, unit in comparison.also.items():
        columns = {
            column.label: metric
            for column in comparison.columns
            if any(
                comparison.numbers[each.label, column.label].read(metric)
                for each in comparison.lines
            )
        }
        if columns:
            yield dataclasses.replace(
                _grid(comparison, columns, spread),
                heading=f"{named(metric)}{f' ({unit})' * bool(unit)}, of the same runs",
            )


def gain_grid(comparison: Comparison) -> Grid:
    """A line for each row and column: the gain over the baseline, its p value and its word."""
    several = len(comparison.columns) > 1
    lines = []
    for line in comparison.lines:
        for column in comparison.columns:
            gain = comparison.gains[line.label, column.label]
            if line.label == comparison.against:
                continue
            p = DASH if gain.adjusted is None else p_text(gain.adjusted)
            text = (gain_text(gain.gain, gain.low, gain.high), p)
            word = f"{gain.word} ({gain.why})" if gain.why else gain.word
            seeds = _seed_counts(comparison, line.label, column.label)
            where = (column.label,) * several
            lines.append((line.label, *where, *text, word, seeds, " and ".join(gain.models)))
    head = ("method", *("column",) * several, "gain, 95% interval", "p after Holm")
    head += (f"against {comparison.against}", "seeds", "estimates")
    return Grid(f"Against {comparison.against}", head, tuple(lines))


def cost_grid(comparison: Comparison) -> Grid:
    """A line for each row and column: time and memory of a run, processor, and where it is from."""
    lines = []
    for line in comparison.lines:
        for column in comparison.columns:
            number = comparison.numbers[line.label, column.label]
            records = [source.record for source in number.sources.values()]
            if not records:
                continue
            seconds = statistics.median(float(each.result["seconds"]) for each in records)
            memory = max(float(each.result["peak_memory_bytes"]) for each in records) / 1e9
            device = max(
                (each.environment.get("peak_device_memory_bytes", 0) for each in records), default=0
            )
            size = f"{memory:.1f}" + f" + {device / 1e9:.1f} on the device" * bool(device)
            on = ", ".join(sorted({processor_of(each) for each in records}))
            lines.append((line.label, column.label, f"{seconds:.0f}", size, on, origins(number)))
    head = ("method", "column", "seconds a run", "GB", "on", "seeds")
    return Grid("Time, memory, origin", head, tuple(lines))


def origins(number: Number) -> str:
    """Which seeds come from where: ``seeds 0-2 run here; seed 3 recorded at 391a9aa``."""
    found: dict[str, list[int]] = {}
    for seed, source in sorted(number.sources.items()):
        found.setdefault(source.origin, []).append(seed)
    for seed, why in sorted(number.missing.items()):
        found.setdefault(why, []).append(seed)
    return "; ".join(f"{named_seeds(seeds)} {origin}" for origin, seeds in found.items())


def headline(comparison: Comparison, spread: Spread = "deviation") -> str:
    """What the numbers are: data, metric, budget, seeds, protocol, comparison, commit."""
    metrics = dict.fromkeys(
        f"{named(number.metric)}{f' ({number.unit})' * bool(number.unit)}"
        for number in comparison.numbers.values()
    )
    what = "± standard deviation" if spread == "deviation" else "[95% interval]"
    return " ".join(
        filter(
            None,
            (
                f"{comparison.title} ({comparison.scale}), on {comparison.data}: "
                f"{' and '.join(metrics)}, mean {what} over {_seeds(comparison)}.",
                f"Budget: {budget(comparison)}." if budget(comparison) else "",
                f"Protocol {comparison.protocol}.",
                f"Bold: better than {comparison.against} (p < {LEVEL} after Holm's adjustment over "
                f"{counted(_tests(comparison), 'comparison')}, by both of two analyses).",
                f"Commit {commits(comparison)}.",
            ),
        )
    )


def budget(comparison: Comparison) -> str:
    """How long and on how much the rows train, where all agree."""
    configs = [each.config for each in comparison.records if each.config.get("train", True)]
    found = []
    for name in BUDGET:
        values = {json.dumps(each[name]) for each in configs if each.get(name) is not None}
        if len(values) == 1:
            found.append(f"{name.replace('_', ' ')} {values.pop().strip(chr(34))}")
    return ", ".join(found)


def commits(comparison: Comparison) -> str:
    """The commits of the runs, the first characters of each."""
    found = {
        f"{str(each.environment['commit'])[:COMMIT]}"
        f"{' with changes' * bool(each.environment['dirty'])}"
        for each in comparison.records
    }
    return ", ".join(sorted(found)) or "none"


def remarks(comparison: Comparison) -> list[str]:
    """What a reader has to know of the numbers, a sentence each."""
    found = [f"{line.label}: {line.about}." for line in comparison.lines if line.about]
    if note := TIER_NOTES[comparison.tier]:
        found.append(note)
    for column in comparison.columns:
        missing = [
            f"{line.label}: {text}"
            for line in comparison.lines
            if (number := comparison.numbers[line.label, column.label]).missing
            and (text := origins(dataclasses.replace(number, sources={})))
        ]
        found += [f"{column.label}, no number: {each}." for each in missing]
        found += _differing(comparison, column.label)
    return found


def _differing(comparison: Comparison, column: str) -> Iterator[str]:
    """Sentences on rows of a column that were measured on other data or other processors."""
    hashes: dict[str, set[str]] = {}
    processors: set[str] = set()
    for line in comparison.lines:
        for source in comparison.numbers[line.label, column].sources.values():
            processors.add(processor_of(source.record))
            for name, digest in source.record.environment["data"].items():
                hashes.setdefault(name, set()).add(digest)
    if other := sorted(name for name, some in hashes.items() if len(some) > 1 and name != "init"):
        yield f"{column}: the files of {', '.join(other)} are not the same in all runs."
    if len(processors) > 1:
        yield (
            f"{column}: measured on several processors ({', '.join(sorted(processors))}); times "
            f"are comparable on one only."
        )


def markdown(comparison: Comparison, spread: Spread = "deviation") -> str:
    """The comparison as a page of Markdown."""
    return page("comparison", globals(), comparison=comparison, spread=spread)


def latex(comparison: Comparison, spread: Spread = "deviation") -> str:
    """The numbers as a table of LaTeX; needs the packages booktabs and graphicx.

    With a single column its further metrics stand beside it.
    """
    grids = [main_grid(comparison, spread)]
    if len(comparison.columns) == 1:
        grids += further_grids(comparison, spread)
    head = ["method", *grids[0].head[1:], *(g.heading.partition(",")[0] for g in grids[1:])]
    texts = {label: rest for grid in grids[:1] for label, *rest in grid.lines}
    others = [{label: rest[0] for label, *rest in grid.lines} for grid in grids[1:]]
    lines = []
    for label, some in texts.items():
        cells = [
            rf"\textbf{{{text}}}" if _is_better(comparison, label, column.label) else text
            for column, text in zip(comparison.columns, map(tex_escaped, some), strict=True)
        ]
        cells += [tex_escaped(other.get(label, DASH)) for other in others]
        lines.append([tex_escaped(label), *cells])
    return tex_table(
        head,
        lines,
        caption=headline(comparison, spread),
        label=f"{comparison.tier} {comparison.address} {comparison.against}",
        column_format="l" + "r" * (len(head) - 1),
    )


def csv_text(comparison: Comparison) -> str:
    """One line per row and column, unrounded, with the value of every seed."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    seeds = _every_seed(comparison)
    writer.writerow(
        ["table", "tier", "changed", "row", "against", "column", "metric", "unit", "protocol"]
        + ["mean", "sd", "low", "high", "seeds", "gain", "gain_low", "gain_high", "p", "p_holm"]
        + ["word", *(f"seed_{seed}" for seed in seeds)]
        + [f"{metric}_mean" for metric in comparison.also]
        + ["seconds", "peak_memory_bytes", "processor", "origin"]
    )
    for line in comparison.lines:
        for column in comparison.columns:
            number = comparison.numbers[line.label, column.label]
            gain = comparison.gains[line.label, column.label]
            summary, values = number.summary, number.read()
            records = [source.record for source in number.sources.values()]
            further = [number.read(metric) for metric in comparison.also]
            seconds = [float(each.result["seconds"]) for each in records]
            writer.writerow(
                [comparison.address, comparison.tier, "; ".join(comparison.changed), line.label]
                + [comparison.against, column.label, number.metric, number.unit]
                + [comparison.protocol]
                + ([summary.mean, summary.sd, summary.low, summary.high] if summary else [None] * 4)
                + [len(values), gain.gain, gain.low, gain.high, gain.p, gain.adjusted, gain.word]
                + [values.get(seed) for seed in seeds]
                + [summarise(some.values()).mean if some else None for some in further]
                + [statistics.median(seconds) if seconds else None]
                + [max((each.result["peak_memory_bytes"] for each in records), default=None)]
                + ["; ".join(sorted(set(map(processor_of, records)))), origins(number)]
            )
    return stream.getvalue()


def forest(comparison: Comparison) -> Picture | None:
    """The gains over the baseline as points with intervals; None without any."""
    panels = []
    for column in comparison.columns:
        number = comparison.numbers[comparison.against, column.label]
        lines: dict[str, list[Point]] = {}
        for line in comparison.lines:
            gain = comparison.gains[line.label, column.label]
            if line.label != comparison.against and gain.gain is not None:
                color = COLOURS.get(gain.word, GREY)
                lines[line.label] = [Point(gain.gain, gain.low, gain.high, color=color)]
        if lines:
            of = {"%": " (points)"}.get(number.unit, f" ({number.unit})" * bool(number.unit))
            unit = f"gain in {named(number.metric)}{of}"
            panels.append(Panel(column.label, narrow(unit), lines, 0.0))
    if not panels:
        return None
    every = {label: () for panel in panels for label in panel.lines}
    panels = [dataclasses.replace(each, lines=every | dict(each.lines)) for each in panels]
    shown = {
        COLOURS.get(comparison.gains[label, panel.title].word, GREY)
        for panel in panels
        for label, some in panel.lines.items()
        if some
    }
    meanings = {f"{word}, 95% interval": color for word, color in COLOURS.items()}
    meanings |= {"without an interval or a word": GREY}
    legend = {meaning: color for meaning, color in meanings.items() if color in shown}
    return Picture(panels, ACROSS, legend, rule=comparison.against)


def learning(comparison: Comparison) -> tuple[list[Curves], list[str]]:
    """Loss and watched scores over the training, and the labels of the rows without a log."""
    panels, lacking = [], []
    for column in comparison.columns:
        found: dict[str, dict[str, dict[float, list[float]]]] = {}
        across = "step"
        for line in comparison.lines:
            number = comparison.numbers[line.label, column.label]
            found_logs = map(_read_log, number.sources.values())
            logs = [log for log in found_logs if log is not None]
            if len(logs) < len(number.sources) and not line.baseline:
                lacking.append(line.label)
            for log in logs:
                across = log.unit
                for x, numbers in log.lines:
                    for name, value in numbers.items():
                        if name == "loss" or name.startswith(WATCHED):
                            curve = found.setdefault(name, {}).setdefault(line.label, {})
                            curve.setdefault(x, []).append(value)
        for name, lines in sorted(found.items()):
            title = f"{column.label}: {name.removeprefix(WATCHED)}"
            panels.append(Curves(title, across, name.removeprefix(WATCHED), lines))
    return panels, list(dict.fromkeys(lacking))


@dataclass(frozen=True)
class Log:
    """What a run has logged: the unit of x, and at each x numbers by name."""

    unit: str
    lines: tuple[tuple[float, Mapping[str, float]], ...]


def _read_log(source: Source) -> Log | None:
    """The log of a run, over epochs where its configuration counts them; None without one."""
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
        return Log("step", tuple(lines))
    last = lines[-1][0]
    return Log("epoch", tuple((epochs * step / last, numbers) for step, numbers in lines))


def methods(comparison: Comparison, spread: Spread = "deviation") -> str:
    """A paragraph on the set-up with its citations in BibTeX."""
    cited: dict[str, None] = {}
    rows = []
    for line in comparison.lines:
        keys = dict.fromkeys(
            key
            for column in comparison.columns
            for source in comparison.numbers[line.label, column.label].sources.values()
            for key in _papers_of(source.record.config, comparison.address.partition("/")[0])
        )
        cited |= keys
        marks = f" [{', '.join(f'@{key}' for key in keys)}]" if keys else ""
        rows.append(f"{line.label}{marks}{f' ({line.about})' * bool(line.about)}")
    entries = {
        found.group(1): found.group(0).strip()
        for found in re.finditer(r"@\w+{(\w+),.*?\n}\n", PAPERS.read_text("utf-8"), re.DOTALL)
    }
    records = comparison.records
    return page(
        "methods",
        globals(),
        comparison=comparison,
        spread=spread,
        rows=rows,
        processors=sorted(set(map(processor_of, records))),
        versions=sorted({str(each.environment["versions"].get("torch")) for each in records}),
        entries=[entries[key] for key in cited | {HOLM: None, "suite": None}],
    )


def _papers_of(config: Mapping[str, Any], domain: str) -> Iterator[str]:
    """The keys of the papers of a configuration's losses."""
    objective = config.get("objective") if config.get("train", True) else None
    if not isinstance(objective, Mapping):
        return
    for each in (objective["loss"], *objective.get("penalties", ())):
        key = CITED.get(str(each["function"]))
        if key == "simclr":
            key = FRAMEWORKS.get(domain, FRAMEWORKS.get(str(config.get("method")), key))
        if key is not None:
            yield key
    if objective.get("projection"):
        yield PROJECTION


def write(to: Path, comparison: Comparison, *, spread: Spread = "deviation") -> list[Path]:
    """Write a comparison into a folder, each file atomically, and return the files.

    Args:
        to: the folder.
        comparison: what is written.
        spread: what stands beside a mean.
    """
    texts = {
        "table.md": markdown(comparison, spread),
        "table.tex": latex(comparison, spread),
        "table.csv": csv_text(comparison),
        "METHODS.md": methods(comparison, spread),
        f"{KEPT}/{slug(comparison.address)}{RECORDS}": "".join(
            map(record_line, comparison.records)
        ),
    }
    for name, text in texts.items():
        write_atomically(to / name, text)
    written = [to / name for name in texts]
    if picture := forest(comparison):
        pictures.write(to / GAINS, picture)
        written += [to / GAINS, (to / GAINS).with_suffix(".pdf")]
    panels, lacking = learning(comparison)
    if panels:
        figure = pictures.curves(panels, ACROSS)
        caption = "Mean and one standard deviation over seeds."
        if lacking:
            caption += f" No curve, since only records are known: {', '.join(lacking)}."
        pictures.label(figure, f"{comparison.title} ({comparison.scale})", caption)
        pictures.save(figure, to / CURVES)
        written.append(to / CURVES)
    else:
        (to / CURVES).unlink(missing_ok=True)  # of other rows
    return written


def named(metric: str) -> str:
    """A metric in words, where there are any."""
    return METRICS.get(metric, metric)


def _grid(comparison: Comparison, metrics: Mapping[str, str], spread: Spread) -> Grid:
    """Lines of labels and numbers: by column which metric, empty for the main one."""
    lines = [
        (
            line.label,
            *(
                _shown(comparison.numbers[line.label, column].read(metric), spread)
                for column, metric in metrics.items()
            ),
        )
        for line in comparison.lines
    ]
    return Grid("", ("method", *metrics), tuple(lines))


def _shown(values: Mapping[int, float], spread: Spread) -> str:
    if not values:
        return DASH
    summary = summarise(values.values())
    if spread == "interval" and summary.low is not None:
        return f"{summary.mean:.2f} [{summary.low:.2f}, {summary.high:.2f}]"
    return mean_sd(summary.mean, summary.sd)


def _is_better(comparison: Comparison, label: str, column: str) -> bool:
    return comparison.gains[label, column].word == "better"


def _tests(comparison: Comparison) -> int:
    """How many comparisons p values are adjusted over."""
    return sum(gain.p is not None for gain in comparison.gains.values())


def _every_seed(comparison: Comparison) -> list[int]:
    return sorted({seed for number in comparison.numbers.values() for seed in number.sources})


def _seeds(comparison: Comparison) -> str:
    """The seeds; where rows differ, that they do."""
    counts = {
        tuple(sorted(comparison.numbers[line.label, column.label].sources))
        for line in comparison.lines
        for column in comparison.columns
        if not line.baseline
    }
    every = _every_seed(comparison)
    if not every:
        return "no seed"
    if len(counts) == 1:
        return named_seeds(every)
    least, most = min(map(len, counts)), max(map(len, counts))
    return f"{least} to {most} of {named_seeds(every)}, see the counts of each row"


def _seed_counts(comparison: Comparison, label: str, column: str) -> str:
    """The number of seeds of a row, and of the baseline if that has others."""
    own, other = (
        len(comparison.numbers[each, column].read()) for each in (label, comparison.against)
    )
    return str(own) if own == other else f"{own}, {other}"


def p_text(value: float) -> str:
    """A p value."""
    return "< 0.0001" if value < 0.0001 else f"{value:.4f}"
