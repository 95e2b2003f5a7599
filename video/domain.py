"""The video domain as one object; heavy modules are imported only when they are needed."""

from pathlib import Path

from shared.experiment.data import MissingData
from shared.experiment.domain import Domain, Experiment, OwnData
from shared.lazy import LazyImport
from video.config import FOLDER, OWN, Config
from video.tables import TABLES

# Training videos of the official splits.
FOLDERS = {"ucf101": FOLDER, "hmdb51": "hmdb51_org"}  # below the data root
VIDEOS = {("ucf101", 1): 9537, ("ucf101", 2): 9586, ("ucf101", 3): 9624}


def _steps(config: Config) -> int | None:
    videos = VIDEOS.get((config.dataset, config.split))
    if config.dataset.startswith(OWN):
        from video.own import read_content

        videos = len(read_content(config.dataset).train)
    return config.epochs * (videos // config.batch_size) if videos else None


def _missing(config: Config, data_root: Path) -> list[MissingData]:
    if config.dataset not in FOLDERS or (data_root / FOLDERS[config.dataset]).is_dir():
        return []
    from video.data import layout_of

    layout = layout_of(config.dataset, data_root)
    return [MissingData(config.dataset, layout.folder, "", layout.remedy)]


DOMAIN = Domain(
    name="video",
    tables=TABLES,
    experiments=(
        Experiment(Config, LazyImport("video.train:measure"), _missing, several=True, steps=_steps),
    ),
    datasets=LazyImport("video.data:DATASETS"),
    fetch=LazyImport("video.data:fetch"),
    figures=LazyImport("video.figures:FIGURES"),
    export=LazyImport("video.export:write"),
    score=LazyImport("video.export:score"),
    scored_by=("skip_damaged", "split"),
    protocols=LazyImport("video.evaluation:PROTOCOLS"),
    own_data=OwnData(
        "mmcl", "table-5-small", ("RGB linear", "RGB R@1"), LazyImport("video.own:read")
    ),
)
