"""Text that the terminal, Markdown, CSV and LaTeX forms of a measured table share.

Measured and published numbers never share a cell: each line is marked as one or the other.
"""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from shared.experiment.config import canonical
from shared.experiment.tables import Published, Row, Table, Tier, Value
from shared.report.measuring import Measured, MeasuredCell
from shared.report.statistics import Summary, summarise

POST_HOC = "†"  # marks a number with seeds that were declared after a look
POST_HOC_NOTE = f"{POST_HOC} Some of the seeds were declared after others had been seen."
# A metric in words, for the axis of a picture.
METRICS: Mapping[str, str] = {
    "accuracy": "accuracy",
    "accuracy_standardised": "accuracy on standardised features",
    "few_shot_top1": "accuracy in few-shot episodes",
    "finetuned_mean_per_class": "mean accuracy of the classes, fine-tuned",
    "finetuned_top1": "accuracy, fine-tuned",
    "knn_top1": "accuracy of k nearest neighbours",
    "l2_top1": "accuracy of logistic regression",
    "linear_top1": "accuracy of a linear classifier",
    "linear_top5": "top-5 accuracy of a linear classifier",
    "many_shot_mean_per_class": "mean accuracy of the classes, logistic regression",
    "many_shot_top1": "accuracy of logistic regression",
    "mean": "mean accuracy of the tasks",
    "mean_without_TREC": "mean accuracy of the tasks without TREC",
    "MSRP_f1": "F1 on MSRP",
    "next_sentence": "accuracy of next-sentence prediction",
    "r2": "variance of the physics state that is explained",
    "return": "mean return of an episode",
    "mean_return": "mean return from 20K to 100K steps",
    "R@1": "recall of the nearest video",
    "ridge": "accuracy of ridge regression",
    "top1": "accuracy of a linear classifier",
    **{task: f"accuracy on {task}" for task in ("CR", "MPQA", "MR", "MSRP", "SUBJ", "TREC")},
}
DASH = "–"  # noqa: RUF001 (an en dash is meant)
TIER_NOTES: dict[Tier, str] = {
    "paper": "",
    "short": "Small: real data, a smaller budget than the paper's.",
    "smoke": "Smoke: embedded data, shows that the code runs; comparable with no published number.",
}


@dataclass(frozen=True)
class Grid:
    """A small table of text: a heading, a head, and lines of as many cells."""

    heading: str
    head: tuple[str, ...]
    lines: tuple[tuple[str, ...], ...]


def shown_metric(metric: str, results: Collection[Mapping[str, Any]]) -> str:
    """The metric, or where no result has it, the first number that all have.

    Results may be of runs that follow another protocol than the table's.
    """
    if not results or any(metric in metrics for metrics in results):
        return metric
    first = next(iter(results))
    names = (name for name, value in first.items() if isinstance(value, int | float))
    return next((name for name in names if all(name in metrics for metrics in results)), metric)


def mean_sd(mean: float, sd: float | None) -> str:
    """A mean with its standard deviation, if any."""
    return f"{mean:.2f}" if sd is None else f"{mean:.2f} ± {sd:.2f}"


def summary_text(summary: Summary | None) -> str:
    """A mean with its standard deviation, if any; a dash without a summary."""
    return DASH if summary is None else mean_sd(summary.mean, summary.sd)


def metric_text(metric: str, unit: str) -> str:
    """A metric in words, with its unit if it has one."""
    name = METRICS.get(metric, metric)
    return f"{name} ({unit})" if unit else name


def published_value(value: Value | None) -> str:
    """A published number; a dash where the paper gives none."""
    return DASH if value is None else mean_sd(value.mean, value.std or value.interval)


def gain_text(gain: float | None, low: float | None = None, high: float | None = None) -> str:
    """A gain with its 95% interval, if any: an end that rounds to 0 keeps its side of it."""
    if gain is None:
        return DASH
    ends = [f"{round(end, 9) + 0.0:+.2f}" for end in (low, high) if end is not None]
    return f"{gain:+z.2f} [{', '.join(ends)}]" if len(ends) == 2 else f"{gain:+z.2f}"


def p_text(value: float) -> str:
    """A p value."""
    return "< 0.0001" if value < 0.0001 else f"{value:.4f}"


def counted(number: int, noun: str) -> str:
    """``1 seed``, ``2 seeds``."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def named_seeds(seeds: Sequence[int]) -> str:
    """``seed 3``, or ``seeds 0-4, 7`` with ranges for consecutive ones."""
    return f"seed{'s' if len(seeds) > 1 else ''} {ranges(seeds)}"


def ranges(seeds: Sequence[int]) -> str:
    """Ascending seeds as in ``0-4, 7``."""
    runs: list[list[int]] = []
    for seed in seeds:
        if runs and seed == runs[-1][-1] + 1:
            runs[-1].append(seed)
        else:
            runs.append([seed])
    return ", ".join(f"{run[0]}-{run[-1]}" if run[1:] else str(run[0]) for run in runs)


def is_additional(row: Row, table: Table) -> bool:
    """Whether no paper gives the row; where the paper only plots, no row is additional."""
    return row.published is None and bool(table.published.rows)


def groups_of(measured: Measured) -> list[tuple[str, list[tuple[MeasuredCell, ...]]]]:
    """The rows that the paper gives, then the additional ones with a heading."""
    other = [cells for cells in measured.cells if is_additional(cells[0].row, measured.table)]
    published = [
        cells for cells in measured.cells if not is_additional(cells[0].row, measured.table)
    ]
    return [pair for pair in (("", published), ("additional rows", other)) if pair[1]]


def measured_lines(cell: MeasuredCell, marks: Mapping[str, int]) -> list[str]:
    """The text of a cell: its number and missing seeds, or the marks of the reasons for none."""
    if not cell.declared:
        return [""]  # the row has no cell in the column
    if cell.summary is None:
        reasons = sorted({marks[why] for why in cell.missing.values()})
        return [f"{DASH} ({', '.join(map(str, reasons))})"]
    text = summary_text(cell.summary)
    lines = [f"{text} {POST_HOC}" if cell.post_hoc else text]
    done, declared = len(cell.values), len(cell.declared)
    if done < declared:
        lines.append(f"{done} of {declared} seeds")
    elif cell.fewer:
        lines.append(counted(done, "seed"))
    return lines


def published_row(cells: Sequence[MeasuredCell], measured: Measured) -> list[str]:
    """The published line below a row; empty if no paper gives it."""
    if cells[0].row.published is None or measured.tier == "smoke":
        return []
    return [published_value(cell.published) if cell.declared else "" for cell in cells]


def marks_of(measured: Measured) -> dict[str, int]:
    """A number for each reason why a declared seed has no result."""
    reasons = (why for cell in measured.flat for why in cell.missing.values())
    return {why: number for number, why in enumerate(dict.fromkeys(reasons), start=1)}


def legend_of(measured: Measured) -> list[str]:
    """For each mark its reason, with the number of seeds without a result for it."""
    reasons = Counter(why for cell in measured.flat for why in cell.missing.values())
    total = sum(len(cell.declared) for cell in measured.flat)
    post_hoc = any(cell.post_hoc and cell.values for cell in measured.flat)
    return [POST_HOC_NOTE] * post_hoc + [
        f"({number}) {reasons[why]} of {total} numbers: {why}"
        for why, number in marks_of(measured).items()
    ]


def headline(measured: Measured) -> str:
    """A description of the measured numbers."""
    table = measured.table
    unit = f" ({table.unit})" if table.unit else ""
    shown: dict[str, list[str]] = {}
    for column in measured.columns:
        shown.setdefault(table.metric_of(column), []).append(column.label)
    metrics = ", ".join(shown)
    if len(shown) > 1:
        metrics = "; ".join(
            f"{metric} in {', '.join(columns)}" for metric, columns in shown.items()
        )
    seeds = named_seeds(measured.seeds)
    if len(measured.seeds) == 1:
        return f"{metrics}{unit}, {seeds} only."
    fewer = any(cell.fewer for cell in measured.flat)
    remark = " (fewer where a cell says so)" if fewer else ""
    return f"{metrics}{unit}, mean ± sample standard deviation over {seeds}{remark}."


def origin(published: Published) -> str:
    """The source and a description of the published numbers; empty where there is no paper."""
    if not published.source:
        return ""
    if not published.rows:
        return f"{published.source}: the paper gives no numbers for this."
    kind = f" ({published.statistic})" if published.statistic else ""
    return f"{published.source}: {published.title}{kind}."


def scale_note(measured: Measured) -> str:
    """A note on numbers at another scale than the paper's."""
    note = TIER_NOTES[measured.tier]
    if measured.tier == "short" and measured.table.short:
        budget = ", ".join(f"{k} = {canonical(v)}" for k, v in measured.table.short.items())
        note = f"{note} Budget: {budget}."
    return note


def further_grids(measured: Measured) -> Iterator[Grid]:
    """Further metrics of a table's runs, one grid each, if any run has them."""
    for metric in measured.table.also:
        summaries = {
            (cell.row.label, cell.column.run_name): summarise(numbers.values())
            for cell in measured.flat
            if (numbers := cell.read(metric))
        }
        rows, runs = {row for row, _ in summaries}, {run for _, run in summaries}
        columns = dict.fromkeys(c.run_name for c in measured.columns if c.run_name in runs)
        lines = tuple(
            (row.label, *(summary_text(summaries.get((row.label, column))) for column in columns))
            for row in measured.table.rows
            if row.label in rows
        )
        if lines:
            unit = measured.table.unit_of(metric)
            heading = f"{metric}{f' ({unit})' if unit else ''}, of the same runs"
            yield Grid(heading, ("method", *columns), lines)


def published_grid(published: Published) -> Grid:
    """Published numbers of another paper."""
    lines = tuple(
        (label, *map(published_value, values)) for label, values in published.rows.items()
    )
    return Grid(origin(published), ("method", *published.columns), lines)
