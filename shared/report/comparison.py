"""Rows of a table beside each other: one comparison with a baseline, as files to publish.

Each row is compared with the baseline in each column by the judge of the papers' claims; the p
values of all rows and columns are adjusted together by Holm's procedure.
"""

import dataclasses
import functools
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
from shared.experiment.frame import processor_of
from shared.experiment.records import RECORDS, Reason, Record, record_line
from shared.experiment.run_folders import WATCHED
from shared.experiment.tables import Column, Tier
from shared.report import pictures
from shared.report.files import ACROSS, commit_name, page
from shared.report.judge import LEVEL, Gain, adjust, measured, word_of
from shared.report.measuring import finite_values
from shared.report.pictures import BLUE, GREEN, GREY, RED, Curves, Panel, Picture, Point, narrow
from shared.report.statistics import Summary, summarise
from shared.report.wording import (
    DASH,
    POST_HOC,
    POST_HOC_NOTE,
    TIER_NOTES,
    Grid,
    counted,
    gain_text,
    metric_text,
    named_seeds,
    p_text,
    summary_text,
)

GAINS, CURVES = "gains.png", "curves.pdf"  # the first is written as PDF as well
TABLE, TEX, SHEET = "table.md", "table.tex", "table.csv"
# The files in the folder of a comparison, all replaced when it is written again.
WRITTEN = (TABLE, TEX, SHEET, GAINS, str(Path(GAINS).with_suffix(".pdf")), CURVES)
KEPT = "records"  # the folder of the records, and of those that others have sent
RULES = (
    "Welch's t test over seeds, three in both rows at least; p is adjusted by Holm's procedure "
    "over all lines, the 95% interval is not."
)
WORDS = {"as claimed": "better", "contrary": "worse"}  # of a gain over the baseline
COLOURS = {"better": GREEN, "worse": RED, "undecided": BLUE}
TEX_ESCAPES = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
TEX_ESCAPES |= {"<": "$<$", ">": "$>$"} | {char: f"\\{char}" for char in "&%$#_{}"}
FIT_TO_PAGE = r"\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{"
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


@dataclass(frozen=True)
class NumberOrigin:
    """Where a number comes from."""

    record: Record
    origin: str  # "run here", or where its record was found
    log: Path | None = None  # of the run; None where only its record is known


@dataclass(frozen=True)
class Number:
    """One row in one column."""

    metric: str  # key of the result that is shown
    unit: str
    sources: Mapping[int, NumberOrigin] = field(default_factory=dict)  # by seed, the finished runs
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
        tried = any(not Reason.NOT_RUN.begins(why) for why in self.missing.values())
        return Reason.FAILED if tried else Reason.NOT_RUN

    @property
    def failed(self) -> list[int]:
        """The seeds whose runs have failed."""
        return [seed for seed, why in self.missing.items() if Reason.FAILED.begins(why)]

    @property
    def summary(self) -> Summary | None:
        """Of the metric over the seeds; None without any."""
        values = self.read().values()
        return summarise(values) if values else None


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
    # Rows and columns some of whose seeds were declared after others had been seen.
    post_hoc: Collection[tuple[str, str]] = ()

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
        gains: dict[tuple[str, str], Gain] = {}
        for row in self.rows:
            for column in self.columns if row.label != self.against else ():
                both = [(label, column.label) for label in (row.label, self.against)]
                values, others = (self.numbers[place].read() for place in both)
                gains[row.label, column.label] = measured(
                    {column.label: (values, others)},
                    post_hoc=any(place in self.post_hoc for place in both),
                )
        return adjust(gains)

    def word(self, label: str, column: str) -> str:
        """What a row is against the baseline in a column, or why nothing is said."""
        number = self.numbers[label, column]
        if not number.read():
            return number.lacking
        if label == self.against:
            return ""
        if not self.numbers[self.against, column].read():
            return f"undecided ({self.against} has no number)"
        word, why = word_of(self.gains[label, column])
        return f"{WORDS.get(word, word)}{f' ({why})' * bool(why)}"

    def interval(self, label: str, column: str) -> tuple[float | None, float | None, float | None]:
        """The gain of a row with the ends of its interval; None for what is not known."""
        gain = self.gains[label, column]
        if not gain.columns:
            return None, None, None
        low, high = gain.estimate.interval or (None, None)
        return gain.estimate.gain, low, high


def main_grid(comparison: Comparison) -> Grid:
    """The numbers: a line for each row, the main metric of each column."""
    head = ("method", *(column.label for column in comparison.columns))
    return Grid("", head, _lines(comparison, comparison.columns, ""))


def further_grids(comparison: Comparison) -> Iterator[Grid]:
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
            lines = _lines(comparison, columns.values(), metric)
            yield Grid(heading, ("method", *columns), lines)


def gain_grid(comparison: Comparison) -> Grid:
    """A line for each row and column: the gain over the baseline, its p value and its word."""
    several = len(comparison.columns) > 1
    lines = []
    for row in comparison.rows:
        for column in comparison.columns:
            if row.label == comparison.against:
                continue
            text = gain_text(*comparison.interval(row.label, column.label))
            p, word = (
                p_of(comparison, row.label, column.label),
                comparison.word(row.label, column.label),
            )
            seeds = _seed_counts(comparison, row.label, column.label)
            names = (row.label, *(column.label,) * several)
            lines.append((*names, text, p, word, seeds))
    head = ("method", *("column",) * several, "gain, 95% interval", "p after Holm")
    head += (f"against {comparison.against}", "seeds")
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


def headline(comparison: Comparison) -> str:
    """What the numbers are: data, metric, budget, seeds, protocol, comparison, commit."""
    metrics = dict.fromkeys(
        metric_text(number.metric, number.unit) for number in comparison.numbers.values()
    )
    mean = "mean ± standard deviation over " if _has_spread(comparison) else ""
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
            f"{counted(tests, 'comparison')})."
        )
    sentences.append(f"Commit {commits(comparison)}.")
    if comparison.post_hoc:
        sentences.append(POST_HOC_NOTE)
    return " ".join(sentences)


def failures(comparison: Comparison) -> str:
    """The seeds that no number holds since their runs failed, by row; empty without any."""
    return _named(comparison, lambda number: number.failed)


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
    if note := TIER_NOTES[comparison.tier]:
        sentences.append(note)
    notices = (r.environment.get("notices", ()) for r in comparison.records)
    sentences += (f"{text}." for text in dict.fromkeys(itertools.chain(*notices)))
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


def markdown(comparison: Comparison) -> str:
    """The comparison as a page of Markdown."""
    return page("comparison", globals(), comparison=comparison, entries=_references(comparison))


def latex(comparison: Comparison) -> str:
    """The numbers as a table of LaTeX; needs the packages booktabs and graphicx.

    With a single column its further metrics stand beside it. A table that is wider than the page is
    scaled down to it.
    """
    import pandas  # takes a second to import

    grid = main_grid(comparison)
    further = list(further_grids(comparison)) if len(comparison.columns) == 1 else []
    head = [*grid.head, *(other.heading.partition(",")[0] for other in further)]
    lines = []
    for index, (label, *texts) in enumerate(grid.lines):
        cells = [
            rf"\textbf{{{text}}}" if _is_better(comparison, label, column.label) else text
            for column, text in zip(comparison.columns, map(_tex, texts), strict=True)
        ]
        cells += [_tex(other.lines[index][1]) for other in further]
        lines.append([_tex(label), *cells])
    # One document may hold several comparisons of a table.
    place = (comparison.tier, comparison.address, *comparison.changed)
    columns = (column.label for column in comparison.columns)
    text: str = pandas.DataFrame(lines, columns=[*map(_tex, head)]).to_latex(
        index=False,
        escape=False,
        column_format="l" + "r" * (len(head) - 1),
        caption=_tex(headline(comparison)),
        label=f"tab:{slug(' '.join((*place, *columns, comparison.against)))}",
    )
    text = text.replace("\\begin{tabular}", f"{FIT_TO_PAGE}\\begin{{tabular}}")
    return text.replace("\\end{tabular}\n", "\\end{tabular}}\n")


def _tex(text: str) -> str:
    """Text in one line, with LaTeX's special characters escaped."""
    return "".join(TEX_ESCAPES.get(char, char) for char in " ".join(text.split()))


def csv_text(comparison: Comparison) -> str:
    """One line per row and column, unrounded, with the value of every seed."""
    import pandas

    seeds = _all_seeds(comparison)
    lines = []
    for row in comparison.rows:
        for column in comparison.columns:
            number = comparison.numbers[row.label, column.label]
            is_baseline = row.label == comparison.against
            gain = None if is_baseline else comparison.gains[row.label, column.label]
            place = (row.label, column.label)
            ends = (None,) * 3 if gain is None else comparison.interval(*place)
            summary, values, records = number.summary, number.read(), number.records
            seconds = [float(record.result["seconds"]) for record in records]
            memory = [record.result["peak_memory_bytes"] for record in records]
            lines.append(
                {
                    "table": comparison.address,
                    "tier": comparison.tier,
                    "changed": "; ".join(comparison.changed),
                    "row": row.label,
                    "against": comparison.against,
                    "column": column.label,
                    "metric": number.metric,
                    "unit": number.unit,
                    "protocol": comparison.protocol,
                    "mean": summary and summary.mean,
                    "sd": summary and summary.sd,
                    "low": summary and summary.low,
                    "high": summary and summary.high,
                    "seeds": len(values),
                    "gain": ends[0],
                    "gain_low": ends[1],
                    "gain_high": ends[2],
                    "p": gain and gain.p,
                    "p_holm": min(gain.adjusted) if gain and gain.p is not None else None,
                    "outcome": comparison.word(*place),
                }
                | {f"seed_{seed}": values.get(seed) for seed in seeds}
                | {
                    f"{metric}_mean": summarise(read.values()).mean if read else None
                    for metric in comparison.also
                    for read in [number.read(metric)]
                }
                | {
                    "seconds": statistics.median(seconds) if seconds else None,
                    "peak_memory_bytes": max(memory, default=None),
                    "processor": "; ".join(sorted(set(map(processor_of, records)))),
                    "origin": origins(number),
                }
            )
    return str(pandas.DataFrame(lines, dtype=object).to_csv(index=False, lineterminator="\n"))


def forest(comparison: Comparison) -> Picture | None:
    """The gains over the baseline as points with intervals; None without any."""
    panels = []
    for column in comparison.columns:
        number = comparison.numbers[comparison.against, column.label]
        lines: dict[str, list[Point]] = {}
        for row in comparison.rows:
            if row.label == comparison.against:
                continue
            gain, low, high = comparison.interval(row.label, column.label)
            if gain is not None:
                word = comparison.word(row.label, column.label)
                color = GREY if low is None else COLOURS.get(word.partition(" (")[0], GREY)
                lines[row.label] = [Point(gain, low, high, color=color)]
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
    meanings |= {"without an interval": GREY}
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


def _read_log(source: NumberOrigin) -> tuple[str, list[tuple[float, dict[str, float]]]] | None:
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


def _references(comparison: Comparison) -> list[str]:
    """The papers of the rows' losses, of the test and of this suite, in BibTeX."""
    domain = comparison.address.partition("/")[0]
    cited = dict.fromkeys(
        key
        for row in comparison.rows
        if not row.baseline
        for column in comparison.columns
        for record in comparison.numbers[row.label, column.label].records
        for key in _papers_of(record.config, domain)
    )
    entries = {
        entry.group(1): entry.group(0).strip()
        for entry in re.finditer(r"@\w+{(\w+),.*?\n}\n", PAPERS.read_text("utf-8"), re.DOTALL)
    }
    return [entries[key] for key in cited | {HOLM: None, "suite": None}]


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


def write(folder: Path, comparison: Comparison) -> list[Path]:
    """Write a comparison into a folder, each file atomically, and return the files."""
    texts = {
        TABLE: markdown(comparison),
        TEX: latex(comparison),
        SHEET: csv_text(comparison),
        f"{KEPT}/{slug(comparison.address)}{RECORDS}": "".join(
            map(record_line, comparison.records)
        ),
    }
    for name, text in texts.items():
        write_atomically(folder / name, text)
    written = [folder / name for name in texts]
    if picture := forest(comparison):
        pictures.write(folder / GAINS, picture)
        pictures.save(pictures.points(picture), (folder / GAINS).with_suffix(".pdf"))
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
    comparison: Comparison, columns: Collection[Column], metric: str
) -> tuple[tuple[str, ...], ...]:
    """The label of each row with its numbers; an empty metric is the main one of each column."""
    return tuple(
        (row.label, *(_mean_text(comparison, row.label, c.label, metric) for c in columns))
        for row in comparison.rows
    )


def _mean_text(comparison: Comparison, label: str, column: str, metric: str) -> str:
    values = comparison.numbers[label, column].read(metric).values()
    text = summary_text(summarise(values) if values else None)
    return f"{text} {POST_HOC}" if values and (label, column) in comparison.post_hoc else text


def _is_better(comparison: Comparison, label: str, column: str) -> bool:
    return comparison.word(label, column) == "better"


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
        columns.setdefault(column.run_name, column)
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


def p_of(comparison: Comparison, label: str, column: str) -> str:
    """The adjusted p value of a row in a column; a dash without one."""
    gain = comparison.gains[label, column]
    return DASH if gain.p is None else p_text(min(gain.adjusted))
