"""The papers' figures of sentences, drawn anew: distances of neighbours and of other sentences.

Shapes: B sentences of a batch, H width of one encoder, D width of what is compared, R rows of
CLLR's projection.

A figure is drawn from the models that finished runs keep, on fixed batches of the corpus that they
were trained on. Where something lacks, the figure is not drawn, and a line says what it waits for.
"""

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor, nn

from shared import context_window, cosine
from shared.experiment.records import Record, read_record
from shared.experiment.tables import Table, Tier, place_of
from shared.pairs import unit_rows
from shared.report.figures import (
    GREY,
    SHADE,
    TIERS,
    Drawn,
    caption,
    nothing_of,
    write_figures,
)
from text.export import MODEL, read
from text.tables import TABLES
from text.tokens import prepare

# Labels of rows as they stand in the figures; those without a finished run leave their place empty.
LMCL_ROWS = (
    ("QT", "QT, cosine", "DCL", "HCL"),
    ("LMCL(QT+DP)", "LMCL(QT+DP), cosine", "LMCL(DCL+DP)", "LMCL(HCL+DP)"),
)
CLLR_ROWS = (
    ("DCL", "CLLR(DCL+l21-norm)", "CLLR(DCL+nuclear-norm)"),
    (
        "QT, cosine",
        "CLLR(DCL+l21-norm), norm over batch",
        "CLLR(DCL+nuclear-norm), norm over batch",
    ),
)
BAND = (0.1, 0.5)  # delta+ and delta- of LMCL
BATCHES = 8
BINS = 50
TITLE = 30  # characters that a panel has room for in one line
NEAR, FAR = "#0b7a75", "#c8553d"


@dataclass(frozen=True)
class Distances:
    """``D = (1 - cos) / 2`` of pairs of sentences, each (pairs,)."""

    neighbours: np.ndarray
    others: np.ndarray


def write(
    paper: str, runs: Path, results: Path, *, data_root: Path, to: Path | None = None
) -> list[Path]:
    """Draw the figures of a paper that can be drawn; print a line for each that cannot.

    Args:
        paper: ``"lmcl"`` or ``"cllr"``.
        runs: folder of the finished runs.
        results: not read: all that is drawn lies with the runs.
        data_root: where the corpus lies.
        to: the files go to ``[short/]text/<paper>/figures/`` below it, by the tier of the runs that
            they are drawn from; None for ``results``.

    Returns:
        The PNG and PDF files written.

    Raises:
        UserError: a paper without figures.
    """

    def drawn(draw: Callable[[Path, Path], tuple[Tier, Figure]]) -> Drawn:
        return Drawn(TABLES[paper][0], *draw(runs, data_root))

    return write_figures("text", paper, FIGURES, drawn, to or results)


# Distances


def scored_pair(f: Tensor, g: Tensor, matrix: Tensor | None) -> tuple[Tensor, Tensor]:
    """What the losses compare: f of a sentence with g of another, (B, H) each."""
    return f, g


def evaluated_pair(f: Tensor, g: Tensor, matrix: Tensor | None) -> tuple[Tensor, Tensor]:
    """The evaluated vectors of both sentences, (B, D): L [f ; g], or [f/|f| ; g/|g|] without L."""
    if matrix is None:
        vectors = torch.cat([unit_rows(f), unit_rows(g)], dim=1)
    else:
        vectors = torch.cat([f, g], dim=1) @ matrix.to(f).T
    return vectors, vectors


def pair_distances(
    first: Tensor, second: Tensor, chapter: Tensor, reach: int
) -> tuple[Tensor, Tensor]:
    """``D = (1 - cos) / 2`` of sentences of a batch: of neighbours (P,), and of all others (Q,).

    Args:
        first: (B, D), consecutive sentences.
        second: (B, D), the same sentences, as that they are compared with.
        chapter: (B,), neighbours are of one chapter.
        reach: how many sentences to each side are neighbours.
    """
    pairs = context_window(first, second, reach, document=chapter)
    distances = ((1 - cosine(first, second)) / 2).clamp(0, 1)
    return distances[pairs.positive], distances[pairs.negative]


def fixed_batches(sentences: int, size: int) -> list[tuple[int, int]]:
    """Start and stop of at most ``BATCHES`` of training's batches, evenly spread over a corpus."""
    whole = max(1, sentences // size)
    numbers = np.unique(np.linspace(0, whole - 1, BATCHES).round().astype(int))
    return [(int(n) * size, min(int(n + 1) * size, sentences)) for n in numbers]


@torch.no_grad()
def distances_of(
    folder: Path,
    config: dict[str, Any],
    data_root: Path,
    compared: Callable[[Tensor, Tensor, Tensor | None], tuple[Tensor, Tensor]],
) -> Distances:
    """The distances of a run's sentences on fixed batches of its corpus, by the model it keeps.

    Args:
        folder: of the run.
        config: of the run, as its record holds it.
        data_root: where the corpus lies.
        compared: :func:`scored_pair` or :func:`evaluated_pair`.

    Raises:
        MissingData: the corpus is not there.
        UserError: a damaged model.
    """
    model, _, matrix = read(folder / MODEL)
    tokens, _ = prepare(
        config["corpus"],
        config["layout"],
        data_root,
        vocabulary=config["vocabulary"],
        lower_case=config["lower_case"],
    )
    device = "cuda" if torch.cuda.is_available() else "cpu"
    nn.Module.to(model, device)  # transformers' own has no type that can be checked
    near, far = [], []
    for start, stop in fixed_batches(len(tokens), config["batch_size"]):
        batch = tokens.batch(start, stop, config["length"])
        f, g = model(batch.ids.to(device), batch.mask)
        first, second = compared(f.float(), g.float(), matrix)
        own, rest = pair_distances(first, second, batch.chapter.to(device), config["reach"])
        near.append(own.cpu())
        far.append(rest.cpu())
    return Distances(torch.cat(near).numpy(), torch.cat(far).numpy())


# Runs and their panels


@dataclass(frozen=True)
class Histograms:
    """Rows of a table as panels of one figure, with histograms of both kinds of distances.

    Args:
        paper: whose table.
        table: its name; that of its short tier ends in ``-small``.
        rows: labels of the rows, as they stand in the figure.
        compared: what of two sentences the distances are between.
        between: the same in words.
        source: the published figure that it follows.
    """

    paper: str
    table: str
    rows: tuple[tuple[str, ...], ...]
    compared: Callable[[Tensor, Tensor, Tensor | None], tuple[Tensor, Tensor]]
    between: str
    source: str

    def __call__(self, runs: Path, data_root: Path) -> tuple[Tier, Figure]:
        """The figure, and the tier of the runs that it is drawn from.

        Raises:
            Lacking: no finished run with a model.
            MissingData: the corpus is not there.
        """
        names = (self.table, f"{self.table}-small")
        tables = [table for table in TABLES[self.paper] if table.name in names]
        table, records = kept(tables, [label for line in self.rows for label in line], runs)
        distances = {
            label: distances_of(
                runs / place_of("text", record.result["tier"], record.config),
                record.config,
                data_root,
                self.compared,
            )
            for label, record in records.items()
        }
        first = next(iter(records.values()))
        tier, config = first.result["tier"], first.config
        title = (
            f"Distances of sentences, rows of {table.paper.upper()}'s {table.name} ({tier} tier)"
        )
        figure = draw(self.rows, distances, title)
        seeds = sorted({record.config["seed"] for record in records.values()})
        caption(
            figure,
            f"After {self.source}. Computed here: D = (1 - cos) / 2 {self.between}, at most "
            f"{config['reach']} apart in a chapter (neighbours) or not (others), in {BATCHES} "
            f"batches of {config['batch_size']} consecutive sentences, spread evenly over the "
            f"corpus {config['corpus']} on which the encoders were trained; seed "
            f"{', '.join(map(str, seeds))}. Shaded: the band from {BAND[0]} to {BAND[1]} that "
            "LMCL's penalty empties, and the share of pairs in it; dashed: the means.",
        )
        return tier, figure


def kept(
    tables: Sequence[Table], labels: Sequence[str], runs: Path
) -> tuple[Table, dict[str, Record]]:
    """For each of the rows its first finished run that keeps a model, all of one table and tier.

    Raises:
        Lacking: there is none.
    """
    for tier, table in itertools.product(TIERS, tables):
        records: dict[str, Record] = {}
        known = {row.label for row in table.rows}
        for label in labels:
            for cell in table.cells(tier, row=label) if label in known else ():
                folder = runs / cell.folder
                if (folder / MODEL).is_dir() and (record := read_record(folder, cell.address)):
                    records.setdefault(label, record)
        if records:
            return table, records
    small = next(table for table in tables if table.name.endswith("-small"))
    raise nothing_of(small, "no finished run of {} with a model", runs)


# Drawing


def draw(rows: Sequence[Sequence[str]], distances: Mapping[str, Distances], title: str) -> Figure:
    """Histograms with shared axes, one panel for each label; lines and columns without any go.

    Args:
        rows: labels as they stand in the figure.
        distances: of those labels that have some.
        title: of the figure.
    """
    columns = [labels for labels in zip(*rows, strict=True) if any(x in distances for x in labels)]
    lines = [labels for labels in zip(*columns, strict=True) if any(x in distances for x in labels)]
    height, width = len(lines), len(columns)
    figure = Figure(figsize=(max(3.6, 2.5 * width), 1.3 + 1.75 * height))
    figure.suptitle(title, fontsize=10, fontweight="bold")
    axes = figure.subplots(height, width, sharex=True, sharey=True, squeeze=False)
    for line, across in zip(lines, axes, strict=True):
        for label, axis in zip(line, across, strict=True):
            heading = label if len(label) <= TITLE else label.replace(", ", ",\n")
            axis.set_title(heading, loc="left", pad=22)
            if label in distances:
                _panel(axis, distances[label])
            else:
                axis.text(
                    0.5, 0.5, "no finished run", ha="center", color=GREY, transform=axis.transAxes
                )
    axes[0, 0].set(xlim=(0, 1), ylim=(0, None))
    for axis in axes[:, 0]:
        axis.set_ylabel("density")
    for axis in axes[-1]:
        axis.set_xlabel("D = (1 - cos) / 2")
    return figure


def _panel(axis: Axes, distances: Distances) -> None:
    axis.axvspan(*BAND, color=SHADE, linewidth=0, zorder=0)
    kinds = (("neighbours", distances.neighbours, NEAR), ("others", distances.others, FAR))
    for place, (name, values, color) in enumerate(kinds):
        density, edges = np.histogram(values, bins=BINS, range=(0, 1), density=True)
        axis.stairs(density, edges, fill=True, color=color, alpha=0.35)
        axis.stairs(density, edges, color=color, linewidth=1)
        axis.axvline(values.mean(), color=color, linewidth=0.9, linestyle="--")
        inside = ((values > BAND[0]) & (values < BAND[1])).mean()
        # Above the axes, where no histogram reaches; the colours make it the legend.
        axis.annotate(
            f"{name}: mean {values.mean():.2f}, {100 * inside:.0f}% in band",
            (0, 1),
            (0, 12 - 9 * place),
            xycoords="axes fraction",
            textcoords="offset points",
            color=color,
            fontsize=7,
        )


FIGURES: dict[str, dict[str, Callable[[Path, Path], tuple[Tier, Figure]]]] = {
    "lmcl": {
        "figure-5-distances": Histograms(
            "lmcl",
            "table-4",
            LMCL_ROWS,
            scored_pair,
            "between f of a sentence and g of another",
            "Figure 5 of Chen et al. 2021 (LMCL)",
        )
    },
    "cllr": {
        "figure-3-distances": Histograms(
            "cllr",
            "table-2",
            CLLR_ROWS,
            evaluated_pair,
            "between the evaluated vectors of two sentences",
            "Figure 3 of Chen et al. 2022 (CLLR)",
        )
    },
}
