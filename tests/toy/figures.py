from pathlib import Path

from shared.experiment.tables import Tier
from toy import tables


def write(
    paper: str, runs: Path, results: Path, *, data_root: Path, to: Path | None = None
) -> list[Path]:
    """Pictures that only name what they would show."""
    if paper != "partial":
        return []
    folder = (to or results) / "toy" / paper / "figures"
    folder.mkdir(parents=True, exist_ok=True)
    files = [folder / "figure-3.png", folder / "overview.png"]
    for file in files:
        file.write_text(f"of {runs}, with {data_root}")
    return files


def film(paper: str, tier: Tier, runs: Path) -> list[Path]:
    """One film beside every finished run of the tier."""
    runs_of = {runs / c.folder: None for each in tables.TABLES[paper] for c in each.cells(tier)}
    files = [folder / "episode.gif" for folder in runs_of if (folder / "result.json").exists()]
    for file in files:
        file.write_text("flickers")
    return files
