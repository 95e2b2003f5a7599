"""The papers' figures on sentences: distances of neighbours and of other sentences.

Shapes: B sentences of a batch, H width of one encoder, D width of what is compared, R rows of
CLLR's projection.

They are drawn from the models that finished runs keep, on fixed batches of their training corpus.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from shared import context_window, cosine
from shared.pairs import unit_rows
from shared.report.figures import CannotDraw, DeclaredFigure, DrawnFigure, FigureRuns, FinishedRun
from shared.report.pictures import Histogram, histograms
from text.config import Config
from text.encoder import Projected
from text.export import MODEL, read
from text.tokens import prepare

# Labels of rows in the layout of the figures; the panel of a row without a finished run is empty.
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
LONG = 30  # characters that fit in one line of a panel

Compared = Callable[[Tensor, Tensor, Projected | None], tuple[Tensor, Tensor]]


def scored_pair(f: Tensor, g: Tensor, project: Projected | None) -> tuple[Tensor, Tensor]:
    """The vectors that the losses compare: f of a sentence and g of another, (B, H) each."""
    return f, g


def evaluated_pair(f: Tensor, g: Tensor, project: Projected | None) -> tuple[Tensor, Tensor]:
    """The evaluated vectors of both sentences, (B, D): L [f ; g], or [f/|f| ; g/|g|] without L."""
    if project is None:
        vectors = torch.cat([unit_rows(f), unit_rows(g)], dim=1)
    else:
        vectors = project(torch.cat([f, g], dim=1))
    return vectors, vectors


def fixed_batches(sentences: int, size: int) -> list[tuple[int, int]]:
    """Start and stop of at most ``BATCHES`` training batches, evenly spread over a corpus."""
    whole = max(1, sentences // size)
    numbers = np.unique(np.linspace(0, whole - 1, BATCHES).round().astype(int))
    return [(int(n) * size, min(int(n + 1) * size, sentences)) for n in numbers]


@torch.no_grad()
def distances_of(
    folder: Path, config: Config, data: Path, compared: Compared
) -> dict[str, np.ndarray]:
    """``D = (1 - cos) / 2`` of neighbours and of all other pairs of sentences, for a run's model.

    ``compared`` is :func:`scored_pair` or :func:`evaluated_pair`. The distances of each kind are
    (pairs,).
    """
    model, _, project = read(folder / MODEL)
    tokens, _ = prepare(
        config.corpus,
        config.layout,
        data,
        vocabulary=config.vocabulary,
        lower_case=config.lower_case,
    )
    device = "cuda" if torch.cuda.is_available() else "cpu"
    nn.Module.to(model, device)  # transformers' own method is untyped
    by_kind: dict[str, list[Tensor]] = {"neighbours": [], "others": []}
    for start, stop in fixed_batches(len(tokens), config.batch_size):
        batch = tokens.batch(start, stop, config.length)
        f, g = model(batch.ids.to(device), batch.mask)
        first, second = compared(f.float(), g.float(), project)
        pairs = context_window(first, second, config.reach, document=batch.chapter.to(device))
        distances = ((1 - cosine(first, second)) / 2).clamp(0, 1)
        by_kind["neighbours"].append(distances[pairs.positive].cpu())
        by_kind["others"].append(distances[pairs.negative].cpu())
    return {name: torch.cat(tensors).numpy() for name, tensors in by_kind.items()}


def distances(
    rows: Sequence[Sequence[str]], compared: Compared, between: str, follows: str
) -> Callable[[FigureRuns], DrawnFigure]:
    """A function that draws histograms of both kinds of distances, a panel for each row of a table.

    rows: their labels, in the figure's layout. compared: the vectors of two sentences whose
    distance is shown; ``between`` says the same in words. follows: the published figure.
    """

    def draw(source: FigureRuns) -> DrawnFigure:
        first: dict[str, FinishedRun] = {}
        for run in source.runs:
            if any(run.row.label in line for line in rows) and (run.folder / MODEL).is_dir():
                first.setdefault(run.row.label, run)
        if not first:
            where = source.runs[0].cell.table_address
            raise CannotDraw(
                f"no finished run of {where} still keeps a model under the folder of runs"
            )
        # Lines and columns without any run are left out.
        columns = [column for column in zip(*rows, strict=True) if first.keys() & set(column)]
        lines = [row for row in zip(*columns, strict=True) if first.keys() & set(row)]
        panels = []
        for label in (name for line in lines for name in line):
            title = label if len(label) <= LONG else label.replace(", ", ",\n")
            groups = {}
            if label in first:
                folder, config = first[label].folder, first[label].config
                groups = distances_of(folder, config, source.data, compared)
            panels.append(Histogram(title, groups))
        unit = "D = (1 - cos) / 2"
        config = next(iter(first.values())).config
        return DrawnFigure(
            histograms(panels, len(columns), unit=unit, limits=(0, 1), band=BAND),
            "Distances of sentences",
            f"After {follows}. Computed here: {unit} {between}, at most {config.reach} apart in a "
            f"chapter (neighbours) or not (others), in {BATCHES} batches of {config.batch_size} "
            f"consecutive sentences, spread evenly over the training corpus {config.corpus}. "
            f"Shaded: the band from {BAND[0]} to {BAND[1]} that LMCL's penalty is meant to empty, "
            "with the share of pairs in it; dashed: the means.",
            list(first.values()),
        )

    return draw


FIGURES = {
    "lmcl": {
        "figure-5-distances": DeclaredFigure(
            distances(
                LMCL_ROWS,
                scored_pair,
                "between f of a sentence and g of another",
                "Figure 5 of Chen et al. 2021 (LMCL)",
            ),
            ("table-4", "table-4-small"),
        )
    },
    "cllr": {
        "figure-3-distances": DeclaredFigure(
            distances(
                CLLR_ROWS,
                evaluated_pair,
                "between the evaluated vectors of two sentences",
                "Figure 3 of Chen et al. 2022 (CLLR)",
            ),
            ("table-2", "table-2-small"),
        )
    },
}
