"""MMCL's video table as pictures: accuracies with their intervals, and clips with their neighbours.

Shapes: n training and m test videos, T frames of a clip, h x w pixels of a stored frame, H features
of the encoder.

The picture of neighbours shows frames of UCF-101, which its owners license: it can be drawn by
those who have the videos, and is not to be distributed.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from shared.experiment.initial import FILE
from shared.report.figures import (
    CannotDraw,
    DeclaredFigure,
    DrawnFigure,
    FinishedRun,
    Source,
    by_row,
)
from shared.report.pictures import GREEN, GREY, RED, Panel, Picture, Point, Tile, images, points
from video.data import Videos, load, part_of
from video.evaluation import embed_clips, nearest, video_features
from video.export import load_encoder
from video.tables import TABLES

SHOWN = "MMCL INV, both views"  # whose neighbours are drawn, if it was trained
QUERIES, NEIGHBOURS = 6, 4
STRIP = 4  # frames of a video that are shown, evenly spread over it
GAP = 2  # pixels between them
TITLE = 30  # characters that a strip has room for
MODALITIES = {"rgb": "RGB", "flow": "flow"}
METRICS = {"top1": "linear, top-1", "R@1": "retrieval, R@1"}


def neighbours(source: Source) -> DrawnFigure:
    """Test videos and the nearest training videos, by the encoder of MMCL's run or another one."""
    run = with_encoder(source.runs)
    config = run.config
    videos = load(
        config.dataset,
        source.data,
        split=config.split,
        modality=config.modality,
        flow=config.flow,
        size=config.size,
        allow_missing=True,
    )
    train, test = videos.of(train=True), videos.of(train=False)
    queries = part_of(test, chosen(test))
    nearest_videos = nearest(features_of(run, train), features_of(run, queries), NEIGHBOURS)
    return DrawnFigure(
        images(tiles(queries, train, nearest_videos)),
        "Nearest training videos of test videos",
        "Computed here: central crops, mean over all windows, centred by the mean of the training "
        "videos, cosine; as for R@1. One test video of each of "
        f"{len(queries.videos)} classes, the first in the list, then its neighbours, the nearest "
        f"first; {STRIP} evenly spaced frames of each video; "
        f"{'flow as stored' if config.modality == 'flow' else 'RGB'}. ✓ of the query's class, ✗ of "
        "another. Frames of UCF-101, not for distribution."
        + (" The run's projection is not applied." if config.objective.projection else ""),
        [run],
    )


def with_encoder(runs: Sequence[FinishedRun]) -> FinishedRun:
    """The run whose neighbours are drawn: one of MMCL, else the first trained one."""
    candidates = [run for run in runs if run.config.train and (run.folder / FILE).is_file()]
    if not candidates:
        raise CannotDraw(f"no trained run of {runs[0].cell.table_address} keeps an encoder")
    return min(candidates, key=lambda run: run.row.label != SHOWN)


def chosen(test: Videos) -> list[int]:
    """Positions of the first test video of each of the first classes."""
    first: dict[int, int] = {}
    for position, video in enumerate(test.videos):
        first.setdefault(video.label, position)
    return [first[label] for label in sorted(first)][:QUERIES]


def features_of(run: FinishedRun, videos: Videos) -> Tensor:
    """The features (n, H) of videos used in retrieval, by the encoder of a run."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    encoder = load_encoder(run.folder / FILE).to(device)

    def embed(clips: Tensor) -> Tensor:
        return embed_clips(encoder, clips, run.config.precision)

    return video_features(run.config, embed, videos, device)


def tiles(queries: Videos, train: Videos, positions: Tensor) -> list[list[Tile]]:
    """One line for each query, with the training videos that were found for it.

    positions: (queries, neighbours) int64, of training videos, nearest first.
    """
    rows = []
    for number, query in enumerate(queries.videos):
        row = [Tile(frame_strip(queries, number), queries.classes[query.label][:TITLE])]
        for position in positions[number].tolist():
            label = train.videos[position].label
            sign, color = ("✓", GREEN) if label == query.label else ("✗", RED)
            title = f"{sign} {train.classes[label]}"[:TITLE]
            row.append(Tile(frame_strip(train, position), title, color))
        rows.append(row)
    return rows


def frame_strip(videos: Videos, position: int) -> np.ndarray:
    """Frames of a video side by side, (h, STRIP * (w + GAP) - GAP, 3) uint8."""
    start, length = int(videos.start[position]), int(videos.length[position])
    frames = torch.linspace(0, length - 1, STRIP).round().long() + start
    pictures = videos.frames[frames].permute(0, 2, 3, 1).numpy()
    padded = np.pad(pictures, ((0, 0), (0, 0), (0, GAP), (0, 0)), constant_values=255)
    return np.concatenate(list(padded), axis=1)[:, :-GAP]


def accuracies(source: Source) -> DrawnFigure:
    """Linear accuracy and R@1 of each row; every seed with Wilson's interval over test videos.

    A panel for each modality and metric, a line for each row, a point for each seed.
    """
    panels = []
    for modality, name in MODALITIES.items():
        for metric, what in METRICS.items():
            lines: dict[str, list[Point]] = {row: [] for row in by_row(source.runs)}
            baselines = []
            for run in (run for run in source.runs if run.config.modality == modality):
                value = run.metrics[metric]
                ends = run.metrics[f"{metric}_low"], run.metrics[f"{metric}_high"]
                color = GREEN if run.config.train else GREY
                lines[run.row.label].append(Point(value, *ends, color=color))
                if not run.config.train:
                    baselines.append(value)
            if any(lines.values()):
                rule = max(baselines, default=None)
                panels.append(Panel(f"{name}: {what}", "%", lines, rule))
    legend = {"trained": GREEN, "without training": GREY}
    details = source.runs[0].metrics["details"]
    return DrawnFigure(
        points(Picture(panels, len(METRICS), legend, rule="the best without training")),
        source.table.title if source.table else "",
        "Points: one run each, seeds from top to bottom; lines: Wilson's 95% interval over "
        f"{details['test_videos']} test videos of {details['classes']} classes, the same for all "
        "rows.",
        source.runs,
    )


FIGURES = {
    paper: {
        f"{name}-{kind}": DeclaredFigure(draw, (name,))
        for name in dict.fromkeys(table.name for table in tables)
        for kind, draw in (("neighbours", neighbours), ("accuracies", accuracies))
    }
    for paper, tables in TABLES.items()
}
