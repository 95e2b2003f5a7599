"""What the figures of all domains have in common: one style, runs to draw, files beside tables."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import matplotlib as mpl
from matplotlib.figure import Figure

from shared.errors import UserError
from shared.experiment.data import MissingData
from shared.experiment.records import Record
from shared.experiment.runs import write_atomically
from shared.experiment.tables import Cell, Table, Tier
from shared.report.measuring import folder_of, measure_finished
from shared.report.pictures import save

TIERS: tuple[Tier, ...] = ("paper", "short")  # the first that has something is drawn
SHADE, GREY = "#eceff3", "#5d6678"
STYLE: dict[Any, Any] = {
    "figure.dpi": 150,
    "savefig.dpi": 150,
    "font.size": 8,
    "axes.titlesize": 8.5,
    "axes.titleweight": "bold",
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "figure.constrained_layout.use": True,
}
# For curves, which are read off their axes.
GRID: dict[Any, Any] = {"axes.grid": True, "grid.color": "#e4e7ec", "legend.frameon": False}
KINDS = ("png", "pdf")

Drawing = TypeVar("Drawing")
Config = TypeVar("Config")


class Lacking(Exception):
    """What a figure waits for, in one line."""


@dataclass(frozen=True)
class Drawn:
    """A figure, and which table it belongs beside.

    Args:
        table: one of the paper's.
        tier: of the runs that are drawn.
        figure: to be kept as PNG and PDF files.
        numbers: what is drawn, as the text of a CSV file beside the picture; None for none.
    """

    table: Table
    tier: Tier
    figure: Figure
    numbers: str | None = None


@dataclass(frozen=True)
class Finished(Generic[Config]):
    """A finished run of a table, its record and folder; of a committed record that may be gone.

    Args:
        cell: the first of the cells that are read from the run.
        config: the configuration of the run.
        record: what counts of it.
        folder: where it lies, if it does.
    """

    cell: Cell
    config: Config
    record: Record
    folder: Path


def finished(
    kind: type[Config], table: Table, tier: Tier, runs: Path, committed: Sequence[Record] = ()
) -> list[Finished[Config]]:
    """What counts for a table in a tier, of runs and committed records, in the table's order.

    Args:
        kind: of the runs that are looked for, others are left out.
        table: one of a domain's.
        tier: of the runs.
        runs: folder of the finished runs.
        committed: records below the folder of results.
    """
    grid = measure_finished(table, tier, runs, committed).cells
    counted = {r.address: r for cells in grid for cell in cells for r in cell.records.values()}
    found: dict[str, Finished[Config]] = {}
    for cell in table.cells(tier):
        if cell.address in counted and isinstance(cell.config, kind):
            config: Config = cell.config
            run = Finished(cell, config, counted[cell.address], runs / cell.folder)
            found.setdefault(cell.address, run)
    return list(found.values())


def nothing_of(table: Table, what: str, runs: Path, tier: Tier = "short") -> Lacking:
    """That ``what`` of a table is not there, and the command that makes it."""
    option = "" if tier == "paper" else f" --tier {tier}"
    return Lacking(
        f"{what.format(table.address)} under {runs}; run ./reproduce.sh {table.domain} "
        f"{table.paper} --table {table.name}{option}"
    )


def caption(figure: Figure, text: str) -> None:
    """Put what is shown, and how it was computed, below a figure."""
    figure.supxlabel(text, fontsize=6.5, color=GREY, wrap=True)


def write_figures(
    domain: str,
    paper: str,
    figures: Mapping[str, Mapping[str, Drawing]],
    draw: Callable[[Drawing], Drawn],
    to: Path,
    style: Mapping[Any, Any] = STYLE,
) -> list[Path]:
    """Draw the figures of a paper that can be drawn; print a line for each that cannot.

    Args:
        domain: named in errors.
        paper: one of those that ``figures`` names.
        figures: for each paper its figures by their names.
        draw: draws one; where it waits for something it raises ``Lacking`` or ``MissingData``.
        to: the files go to ``[short/]<domain>/<paper>/figures/`` below it.
        style: of matplotlib.

    Returns:
        The PNG and PDF files written, and the CSV files beside them.

    Raises:
        UserError: a paper without figures.
    """
    if paper not in figures:
        raise UserError(f"{domain} has no figures for {paper!r}; it has {', '.join(figures)}")
    written = []
    for name, drawing in figures[paper].items():
        with mpl.rc_context(dict(style)):
            try:
                drawn = draw(drawing)
            except (Lacking, MissingData) as reason:
                print(f"{name}: not drawn: {reason}")
                continue
            folder = to / folder_of(drawn.table, drawn.tier) / "figures"
            for kind in KINDS:
                save(drawn.figure, folder / f"{name}.{kind}")
                written.append(folder / f"{name}.{kind}")
        if drawn.numbers is not None:
            write_atomically(folder / f"{name}.csv", drawn.numbers)
            written.append(folder / f"{name}.csv")
    return written
