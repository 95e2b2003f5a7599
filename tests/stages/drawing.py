"""What tests of figures share: a declared figure drawn from a folder of runs; how to read it."""

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.text import Text

from shared.experiment.frame import load
from shared.experiment.run import Run
from shared.experiment.tables import Cell, Table, Tier
from shared.report.figures import DrawnFigure, Figures, draw


def drawn(
    tables: dict[str, tuple[Table, ...]],
    figures: Figures,
    figure: str,
    runs: Path,
    data: Path | None = None,
) -> tuple[Tier, DrawnFigure]:
    """The figure "paper/name", without committed records."""
    paper, name = figure.split("/")
    frame = load(tables[paper], runs=runs)
    return draw(figures[paper][name], tables[paper], frame, runs, data or runs / "no data")


def table_of(tables: dict[str, tuple[Table, ...]], paper: str, name: str, tier: Tier) -> Table:
    (table,) = (each for each in tables[paper] if each.name == name and tier in each.tiers)
    return table


def finish(runs: Path, cell: Cell, metrics: dict[str, Any], log: Any = ()) -> Path:
    """A finished run of a cell, without the training."""
    with Run(runs / cell.folder, cell.config, tier=cell.tier) as run:
        for step, numbers in log:
            run.log(step, **numbers)
        run.finish(metrics)
    return runs / cell.folder


def texts(figure: Figure) -> str:
    return "\n".join(str(each.get_text()) for each in figure.findobj(Text))


def lines(axis: Axes) -> dict[str, tuple[list[float], list[float]]]:
    """By label, what the lines of an axis show."""
    return {
        str(line.get_label()): (
            np.asarray(line.get_xdata()).tolist(),
            np.asarray(line.get_ydata()).tolist(),
        )
        for line in axis.lines
    }


def titles(figure: Figure) -> list[str]:
    return [axis.get_title(loc="left") for axis in figure.axes]


def rows_of(axis: Axes) -> list[str]:
    return [label.get_text() for label in axis.get_yticklabels()]
