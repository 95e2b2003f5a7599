"""The transcribed numbers of the papers load and are the printed ones."""

import math
import statistics
import tomllib
from pathlib import Path

import pytest

from shared.experiment.tables import Value, load_published

ROOT = Path(__file__).resolve().parents[1]
RL = ROOT / "rl" / "published"
FILES = sorted(
    file
    for file in ROOT.glob("*/published/*.toml")
    if file.name not in ("claims.toml", "notes.toml")
)


def tables() -> list[tuple[Path, str]]:
    found = []
    for file in FILES:
        content = tomllib.loads(file.read_text(encoding="utf-8"))
        found += [(file, key) for key, entry in content.items() if isinstance(entry, dict)]
    return found


# By table: rows, numbers, and the sums of means and of deviations, each times its place, so that
# neither a changed number nor two exchanged ones go unseen.
SUMS = (
    ("graph/published/mmcl.toml", "table-4", 2, 10, 4136.95, 30.24),
    ("graph/published/references.toml", "graphcl", 1, 8, 2664.74, 24.14),
    ("graph/published/references.toml", "infograph", 1, 3, 482.57, 7.13),
    ("graph/published/references.toml", "batchsampler", 3, 21, 17546.51, 127.58),
    ("graph/published/references.toml", "autogcl-issue-8", 1, 5, 1115.21, 44.1),
    ("rl/published/cllr.toml", "table-4", 6, 36, 420880, 32801),
    ("rl/published/lmcl.toml", "table-5", 6, 36, 420196, 43901),
    ("rl/published/references.toml", "curl-100k", 7, 40, 359980, 47115),
    ("rl/published/references.toml", "curl-500k", 3, 18, 113901, 6381),
    ("rl/published/references.toml", "curl-issue-15", 1, 6, 16939, 1395),
    ("rl/published/references.toml", "curl-rerun", 2, 4, 3801.54, 971.82),
    ("rl/published/references.toml", "drq", 3, 18, 144547, 8958),
    ("text/published/cllr.toml", "table-2", 5, 30, 39401.4, 0),
    ("text/published/lmcl.toml", "table-4", 6, 36, 56122.8, 0),
    ("video/published/mmcl.toml", "table-5", 2, 8, 1913.64, 0),
    ("video/published/references.toml", "coclr", 4, 7, 1432.1, 0),
    ("vision/published/cllr.toml", "table-1", 11, 44, 72263.2, 2139.1),
    ("vision/published/cllr.toml", "table-3", 9, 36, 52283.86, 0),
    ("vision/published/lmcl.toml", "table-1", 3, 6, 1706.9, 32),
    ("vision/published/lmcl.toml", "table-2", 7, 28, 31594.19, 0),
    ("vision/published/lmcl.toml", "table-3", 4, 20, 17069, 0),
    ("vision/published/margins.toml", "table-1", 6, 48, 81847.283, 0),
    ("vision/published/margins.toml", "table-2", 12, 48, 83064.22, 248.059),
    ("vision/published/margins.toml", "table-3", 12, 48, 67155.395, 275.095),
    ("vision/published/margins.toml", "table-4", 4, 4, 667.6, 0),
    ("vision/published/margins.toml", "table-5", 4, 16, 56.2, 0),
    ("vision/published/margins.toml", "table-6", 2, 8, 287.9375, 0),
    ("vision/published/margins.toml", "table-7", 5, 20, 749.15, 0),
    ("vision/published/margins.toml", "table-8", 2, 8, 19, 0),
    ("vision/published/margins.toml", "table-9", 4, 16, 10092.129, 30.988),
    ("vision/published/margins.toml", "table-10", 4, 16, 8311.776, 36.803),
    ("vision/published/mmcl.toml", "table-1", 8, 64, 157654.76, 251.67),
    ("vision/published/mmcl.toml", "table-2", 5, 5, 1180.8, 0),
    ("vision/published/mmcl.toml", "table-3", 5, 5, 944.14, 0),
    ("vision/published/mmcl.toml", "table-6", 3, 6, 1441.39, 0),
    ("vision/published/mmcl.toml", "table-7", 4, 12, 6523.94, 0),
    ("vision/published/mmcl.toml", "table-8", 3, 6, 1656.27, 0),
    ("vision/published/mmcl.toml", "longer-training", 2, 4, 650.3, 0),
    ("vision/published/references.toml", "benchmark-mnn", 3, 9, 2837.6, 0),
    ("vision/published/references.toml", "ressl", 1, 4, 636.28, 0),
    ("vision/published/references.toml", "dcl", 3, 3, 496.63, 0),
    ("vision/published/references.toml", "hcl", 4, 4, 854.89, 0),
)


@pytest.mark.parametrize(("file", "key", "rows", "numbers", "means", "deviations"), SUMS)
def test_printed_numbers_are_as_they_were_transcribed(
    file: str, key: str, rows: int, numbers: int, means: float, deviations: float
) -> None:
    published = load_published(ROOT / file, key)
    values = [value for some in published.rows.values() for value in some if value is not None]
    assert (len(published.rows), len(values)) == (rows, numbers)
    placed = list(enumerate(values, 1))
    assert math.fsum(n * value.mean for n, value in placed) == pytest.approx(means, rel=1e-9)
    assert math.fsum(n * (value.std or 0) for n, value in placed) == pytest.approx(
        deviations, rel=1e-9
    )


def test_no_table_of_printed_numbers_is_left_out() -> None:
    printed = {
        (str(file.relative_to(ROOT)), key)
        for file, key in tables()
        if load_published(file, key).rows
    }
    assert printed == {(file, key) for file, key, *_ in SUMS}


@pytest.mark.parametrize(("file", "key"), tables(), ids=lambda part: getattr(part, "stem", part))
def test_every_published_table_loads(file: Path, key: str) -> None:
    published = load_published(file, key)
    assert bool(published.rows) is bool(published.columns)
    assert bool(published.rows) is not key.startswith("figure")  # no figure prints numbers
    assert published.source
    assert len(set(published.columns)) == len(published.columns)
    for label, values in published.rows.items():
        assert any(value is not None for value in values), label
        for value in values:
            if value is not None:
                assert math.isfinite(value.mean)
                assert value.std is None or (math.isfinite(value.std) and value.std >= 0)
    assert set(published.notes) <= set(published.rows)


@pytest.mark.parametrize(
    ("label", "swingup", "walk"),
    [
        ("CURL", [678.02, 446.17, 587.99], [482.83, 385.23]),
        (
            "without the contrastive step, same crops",
            [454.47, 240.54, 463.26],
            [241.28, 360.96],
        ),
    ],
)
def test_the_rerun_of_curl_is_the_mean_of_its_seeds(
    label: str, swingup: list[float], walk: list[float]
) -> None:
    published = load_published(RL / "references.toml", "curl-rerun")
    assert published.columns == ("Swingup", "Walk")
    for value, seeds in zip(published.rows[label], (swingup, walk), strict=True):
        assert value == Value(round(statistics.fmean(seeds), 2), round(statistics.stdev(seeds), 2))
        assert ", ".join(map(str, seeds)) in published.notes[label]
    assert "n = 3 on Swingup, n = 2 on Walk" in published.statistic
