from pathlib import Path

from shared.experiment.tables import Tier
from shared.report.figures import DeclaredFigure, DrawnFigure, FigureRuns
from shared.report.pictures import Curves, curves
from toy import tables


def line(source: FigureRuns) -> DrawnFigure:
    """A picture that needs no run."""
    panel = Curves("a line", "place", "value", {"one": {0: [1.0], 1: [2.0]}})
    return DrawnFigure(curves([panel], 1), "A line", "Drawn from nothing.")


FIGURES = {
    "toy": {},
    "partial": {"figure-3": DeclaredFigure(line), "overview": DeclaredFigure(line)},
}


def film(paper: str, tier: Tier, runs: Path) -> list[Path]:
    """One film beside every finished run of the tier."""
    runs_of = {runs / c.folder: None for each in tables.TABLES[paper] for c in each.cells(tier)}
    files = [folder / "episode.gif" for folder in runs_of if (folder / "result.json").exists()]
    for file in files:
        file.write_text("flickers")
    return files
