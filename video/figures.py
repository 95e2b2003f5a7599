"""MMCL's video table as a picture: accuracies with their intervals."""

from shared.report.figures import DeclaredFigure, DrawnFigure, FigureRuns, by_row
from shared.report.pictures import GREEN, GREY, Panel, Picture, Point, points
from video.tables import TABLES

MODALITIES = {"rgb": "RGB", "flow": "flow"}
METRICS = {"top1": "linear, top-1", "R@1": "retrieval, R@1"}


def accuracies(source: FigureRuns) -> DrawnFigure:
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
        f"{name}-accuracies": DeclaredFigure(accuracies, (name,))
        for name in dict.fromkeys(table.name for table in tables)
    }
    for paper, tables in TABLES.items()
}
