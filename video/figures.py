"""MMCL's video table as pictures: accuracies with their intervals, and clips with their neighbours.

Shapes: n training and m test videos, T frames of a clip, h x w pixels of a stored frame, H features
of the encoder.

Accuracies are drawn from the records of finished runs and the committed ones alike, neighbours from
the encoder that a run keeps and from the videos themselves. Where something lacks, the figure is
not drawn, and a line says what it waits for. The picture of neighbours holds frames of UCF-101,
whose terms are its owners': it is drawn for whoever has the videos, and is not for distribution.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from shared.experiment.data import MissingData
from shared.experiment.export import FILE
from shared.experiment.records import Record, read_records
from shared.experiment.tables import Table, Tier
from shared.report.figures import (
    GREY,
    TIERS,
    Drawn,
    Finished,
    Lacking,
    caption,
    finished,
    nothing_of,
    write_figures,
)
from video.config import Config
from video.data import Videos, load
from video.evaluation import embed_clips, nearest, video_features
from video.export import load_encoder
from video.tables import TABLES

SHOWN = "MMCL INV, both views"  # whose neighbours are drawn, if it was trained
QUERIES, NEIGHBOURS = 6, 4
STRIP = 4  # frames of a video that are shown, evenly spread over it
GAP = 2  # pixels between them
TITLE = 34  # characters that a strip has room for
RIGHT, WRONG = "#0b7a75", "#c8553d"
SIGNS = {True: ("✓", RIGHT), False: ("✗", WRONG)}


def write(
    paper: str, runs: Path, results: Path, *, data_root: Path, to: Path | None = None
) -> list[Path]:
    """Draw the figures of a paper that can be drawn; print a line for each that cannot.

    Args:
        paper: ``"mmcl"``.
        runs: folder of the finished runs.
        results: folder of the committed records.
        data_root: where the videos lie.
        to: the files go to ``[short/]video/<paper>/figures/`` below it, by the tier of the runs
            that they are drawn from; None for ``results``.

    Returns:
        The PNG and PDF files written.

    Raises:
        UserError: a paper without figures, or a damaged encoder.
    """
    committed = read_records(results)
    figures = {
        each: {
            f"{table.name}-{kind}": (table.name, draw)
            for table in tables
            for kind, draw in FIGURES.items()
        }
        for each, tables in TABLES.items()
    }

    def drawn(figure: tuple[str, Draw]) -> Drawn:
        name, draw = figure
        reasons = []
        for table in TABLES[paper]:  # two may have one name, and no tier in common
            if table.name == name:
                try:
                    return Drawn(table, *draw(table, runs, data_root, committed))
                except (Lacking, MissingData) as reason:
                    reasons.append(reason)
        raise reasons[0]

    return write_figures("video", paper, figures, drawn, to or results)


# Neighbours


def neighbours(
    table: Table, runs: Path, data_root: Path, committed: Sequence[Record]
) -> tuple[Tier, Figure]:
    """Test videos and the nearest training videos, by the encoder of the first run that has one.

    Args:
        table: of a ``coclr-linear-retrieval`` protocol.
        runs: folder of the finished runs.
        data_root: where the videos lie.
        committed: not looked at: a record has no encoder.

    Raises:
        Lacking: no finished run with an encoder.
        MissingData: the videos are not there.
        UserError: a damaged encoder, or videos that cannot be used.
    """
    run = with_encoder(table, runs)
    config = run.config
    videos = load(
        config.dataset,
        data_root,
        split=config.split,
        modality=config.modality,
        flow=config.flow,
        size=config.size,
        allow_missing=True,
    )
    train, test = videos.of(train=True), videos.of(train=False)
    shown = chosen(test)
    features, queries = features_of(run, train), features_of(run, part_of(test, shown))
    found = nearest(features, queries, NEIGHBOURS)
    figure = draw_neighbours(
        part_of(test, shown),
        train,
        found,
        f"Nearest training videos of test videos ({run.record.result['tier']} tier)",
    )
    caption(
        figure,
        f"Computed here, by the encoder of {run.record.address}: central crops, mean over all "
        "windows, centred by the mean of the training videos, cosine; as for R@1. One test video "
        f"of each of {len(shown)} classes, the first in the list; {STRIP} frames of each video, "
        f"evenly spread; {'flow as stored' if config.modality == 'flow' else 'RGB'}. "
        f"{SIGNS[True][0]} of the query's class, {SIGNS[False][0]} of another. Frames of UCF-101, "
        "not for distribution."
        + (" The run's projection is not applied." if config.objective.projection else ""),
    )
    return run.cell.tier, figure


def with_encoder(table: Table, runs: Path) -> Finished[Config]:
    """The run whose neighbours are drawn: of MMCL, else of the first row that was trained.

    Raises:
        Lacking: no such run keeps an encoder.
    """
    for tier in _tiers(table):
        found = [
            run for run in finished(Config, table, tier, runs) if (run.folder / FILE).is_file()
        ]
        trained = [run for run in found if run.config.train]
        if trained:
            return min(trained, key=lambda run: run.cell.row != SHOWN)
    raise nothing_of(table, "no finished run of {} with an encoder", runs, _tiers(table)[-1])


def chosen(test: Videos) -> list[int]:
    """The places of the first test video of each of the first classes."""
    first: dict[int, int] = {}
    for place, video in enumerate(test.videos):
        first.setdefault(video.label, place)
    return [first[label] for label in sorted(first)][:QUERIES]


def part_of(videos: Videos, places: Sequence[int]) -> Videos:
    """Some of the videos; they share the frames of all."""
    kept = list(places)
    return Videos(
        tuple(videos.videos[place] for place in kept),
        videos.classes,
        videos.frames,
        videos.start[kept],
        videos.length[kept],
    )


def features_of(run: Finished[Config], videos: Videos) -> Tensor:
    """The features (n, H) of videos that retrieval compares, by the encoder of a run."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    encoder = load_encoder(run.folder / FILE).to(device)

    def embed(clips: Tensor) -> Tensor:
        return embed_clips(encoder, clips, run.config.precision)

    return video_features(run.config, embed, videos, device)


def draw_neighbours(queries: Videos, train: Videos, found: Tensor, title: str) -> Figure:
    """Each query in a line with the training videos that were found for it.

    Args:
        queries: of the test split.
        train: the training videos.
        found: (queries, neighbours) int64, their places, nearest first.
        title: of the figure.
    """
    height, width = len(queries.videos), 1 + found.shape[1]
    ratio = queries.frames.shape[-1] / queries.frames.shape[-2]
    strip = 2.3
    figure = Figure(figsize=(strip * width, 0.75 + height * (strip / STRIP / ratio + 0.28)))
    figure.suptitle(title, fontsize=10, fontweight="bold")
    axes = figure.subplots(height, width, squeeze=False)
    for row, (query, line) in enumerate(zip(queries.videos, axes, strict=True)):
        _strip(line[0], frame_strip(queries, row), queries.classes[query.label], "black")
        for axis, place in zip(line[1:], found[row].tolist(), strict=True):
            label = train.videos[place].label
            sign, color = SIGNS[label == query.label]
            _strip(axis, frame_strip(train, place), f"{sign} {train.classes[label]}", color)
    axes[0, 0].annotate(
        "query", (0, 1), (0, 16), xycoords="axes fraction", textcoords="offset points", color=GREY
    )
    for rank, axis in enumerate(axes[0, 1:], start=1):
        axis.annotate(
            f"neighbour {rank}",
            (0, 1),
            (0, 16),
            xycoords="axes fraction",
            textcoords="offset points",
            color=GREY,
        )
    return figure


def frame_strip(videos: Videos, place: int) -> np.ndarray:
    """Frames of a video side by side, (h, STRIP * (w + GAP) - GAP, 3) uint8."""
    start, length = int(videos.start[place]), int(videos.length[place])
    frames = torch.linspace(0, length - 1, STRIP).round().long() + start
    pictures = videos.frames[frames].permute(0, 2, 3, 1).numpy()
    _, height, width, _ = pictures.shape
    strip = np.full((height, STRIP * (width + GAP) - GAP, 3), 255, np.uint8)
    for number, picture in enumerate(pictures):
        strip[:, number * (width + GAP) : number * (width + GAP) + width] = picture
    return strip


def _strip(axis: Axes, picture: np.ndarray, label: str, color: str) -> None:
    axis.imshow(picture)
    axis.set_xticks([])
    axis.set_yticks([])
    axis.set_title(label[:TITLE], loc="left", color=color, pad=3)
    for spine in axis.spines.values():
        spine.set(visible=True, color=color, linewidth=1.5)


# Accuracies


def accuracies(
    table: Table, runs: Path, data_root: Path, committed: Sequence[Record]
) -> tuple[Tier, Figure]:
    """Linear accuracy and R@1 of each row, every seed with Wilson's interval over test videos.

    Args:
        table: of a ``coclr-linear-retrieval`` protocol.
        runs: folder of the finished runs.
        data_root: not looked at: all that is drawn lies with the runs and records.
        committed: records below the folder of results.

    Raises:
        Lacking: no finished run.
    """
    for tier in _tiers(table):
        if found := finished(Config, table, tier, runs, committed):
            return tier, draw_accuracies(table, found)
    raise nothing_of(table, "no finished run of {}", runs, _tiers(table)[-1])


def draw_accuracies(table: Table, found: Sequence[Finished[Config]]) -> Figure:
    """A panel for each modality and metric, a line for each row, a point for each seed.

    Args:
        table: names the rows.
        found: finished runs of one tier.
    """
    rows = [row.label for row in table.rows if any(run.cell.row == row.label for run in found)]
    modalities = [
        name for name in ("rgb", "flow") if any(run.config.modality == name for run in found)
    ]
    tier = found[0].cell.tier
    figure = Figure(figsize=(7.5, 1.4 + 0.26 * len(rows) * len(modalities)))
    figure.suptitle(f"{table.title} ({tier} tier)", fontsize=10, fontweight="bold")
    axes = figure.subplots(len(modalities), 2, sharey=True, squeeze=False)
    kinds = (("top1", "linear, top-1 in %"), ("R@1", "retrieval, R@1 in %"))
    for modality, line in zip(modalities, axes, strict=True):
        for axis, (metric, name) in zip(line, kinds, strict=True):
            axis.set_title(f"{'RGB' if modality == 'rgb' else 'flow'}: {name}", loc="left")
            axis.grid(axis="x", color="#e4e7ec")
            baselines = [
                run.record.result["metrics"][metric]
                for run in found
                if not run.config.train and run.config.modality == modality
            ]
            if baselines:
                axis.axvline(max(baselines), color=GREY, linewidth=1, linestyle=":", zorder=0)
            for height, row in enumerate(rows):
                runs = [
                    run for run in found if (run.cell.row, run.config.modality) == (row, modality)
                ]
                for place, run in enumerate(runs):
                    _interval(axis, run, metric, height + 0.16 * (place - (len(runs) - 1) / 2))
        line[0].set_yticks(range(len(rows)), rows)
    axes[0, 0].set_ylim(len(rows) - 0.4, -0.6)  # the table's order, downwards
    details = found[0].record.result["metrics"]["details"]
    seeds = sorted({run.config.seed for run in found})
    caption(
        figure,
        f"Points: one run each, seed {seeds[0]}"
        + (f", {', '.join(map(str, seeds[1:]))} from top to bottom" if len(seeds) > 1 else "")
        + "; lines: Wilson's 95% interval over "
        f"{details['test_videos']} test videos of {details['classes']} classes, the same for all "
        "rows. Green: trained; gray: without training, the best of them dotted. Protocol "
        f"{found[0].config.protocol}.",
    )
    return figure


def _tiers(table: Table) -> tuple[Tier, ...]:
    return tuple(tier for tier in TIERS if tier in table.tiers)


def _interval(axis: Axes, run: Finished[Config], metric: str, height: float) -> None:
    metrics = run.record.result["metrics"]
    value = metrics[metric]
    ends = [[value - metrics[f"{metric}_low"]], [metrics[f"{metric}_high"] - value]]
    axis.errorbar(
        [value],
        [height],
        xerr=ends,
        fmt="o" if run.config.train else "s",
        color=RIGHT if run.config.train else GREY,
        markersize=3,
        linewidth=1,
    )


Draw = Callable[[Table, Path, Path, Sequence[Record]], tuple[Tier, Figure]]
FIGURES: dict[str, Draw] = {"neighbours": neighbours, "accuracies": accuracies}
