"""The transcribed numbers of the papers load and are the printed ones."""

import math
import tomllib
from pathlib import Path

import pytest

from shared.tables import Published, Value, load_published

ROOT = Path(__file__).resolve().parents[1]
GRAPH = ROOT / "graph" / "published"
FILES = sorted(ROOT.glob("*/published/*.toml"))


def tables() -> list[tuple[Path, str]]:
    found = []
    for file in FILES:
        content = tomllib.loads(file.read_text(encoding="utf-8"))
        found += [(file, key) for key, entry in content.items() if isinstance(entry, dict)]
    return found


def row(published: Published, label: str) -> dict[str, tuple[float, float | None]]:
    values = zip(published.columns, published.rows[label], strict=True)
    return {column: (value.mean, value.std) for column, value in values if value is not None}


def test_the_graph_domain_has_its_files() -> None:
    assert {file.name for file in FILES if file.parent == GRAPH} == {
        "mmcl.toml",
        "references.toml",
    }


@pytest.mark.parametrize(("file", "key"), tables(), ids=lambda part: getattr(part, "stem", part))
def test_every_published_table_loads(file: Path, key: str) -> None:
    published = load_published(file, key)
    assert published.rows
    assert published.source
    assert len(set(published.columns)) == len(published.columns)
    for label, values in published.rows.items():
        assert any(value is not None for value in values), label
        for value in values:
            if value is not None:
                assert math.isfinite(value.mean)
                assert value.std is None or (math.isfinite(value.std) and value.std >= 0)
    assert set(published.notes) <= set(published.rows)


def test_mmcl_table_4() -> None:
    published = load_published(GRAPH / "mmcl.toml", "table-4")
    assert published.source == "Max-Margin Contrastive Learning, Table 4"
    assert list(published.rows) == ["GraphCL", "MMCL"]
    assert row(published, "GraphCL") == {
        "DD": (78.62, 0.40),
        "MUTAG": (86.80, 1.34),
        "REDDIT-BINARY": (89.53, 0.84),
        "REDDIT-MULTI-5K": (55.99, 0.28),
        "IMDB-BINARY": (71.14, 0.44),
    }
    assert row(published, "MMCL") == {
        "DD": (78.74, 0.30),
        "MUTAG": (88.42, 1.33),
        "REDDIT-BINARY": (90.41, 0.60),
        "REDDIT-MULTI-5K": (56.18, 0.29),
        "IMDB-BINARY": (71.62, 0.28),
    }
    assert published.notes == {
        "GraphCL": "copied from the GraphCL paper, not re-run",
        "MMCL": "variant PGD or INV not stated",
    }


def test_references_of_the_graph_domain() -> None:
    file = GRAPH / "references.toml"
    graphcl = load_published(file, "graphcl")
    assert row(graphcl, "GraphCL") == {
        "NCI1": (77.87, 0.41),
        "PROTEINS": (74.39, 0.45),
        "DD": (78.62, 0.40),
        "MUTAG": (86.80, 1.34),
        "COLLAB": (71.36, 1.15),
        "REDDIT-BINARY": (89.53, 0.84),
        "REDDIT-MULTI-5K": (55.99, 0.28),
        "IMDB-BINARY": (71.14, 0.44),
    }
    assert row(load_published(file, "infograph"), "InfoGraph") == {
        "MUTAG": (89.01, 1.13),
        "IMDB-BINARY": (73.03, 0.87),
        "REDDIT-BINARY": (82.50, 1.42),
    }
    batchsampler = load_published(file, "batchsampler")
    assert list(batchsampler.rows) == ["GraphCL", "DCL", "HCL"]
    assert batchsampler.value("GraphCL", "IMDB-MULTI") == Value(48.48, 0.38)
    assert batchsampler.value("DCL", "MUTAG") == Value(88.09, 0.93)
    assert batchsampler.value("HCL", "NCI1") == Value(78.83, 0.67)
    assert batchsampler.value("HCL", "COLLAB") == Value(71.03, 0.45)
    autogcl = load_published(file, "autogcl-issue-8")
    assert row(autogcl, "no mask") == {
        "MUTAG": (90.99, 7.80),
        "DD": (78.53, 3.58),
        "REDDIT-BINARY": (90.30, 1.99),
        "REDDIT-MULTI-5K": (56.69, 1.63),
        "IMDB-BINARY": (73.90, 3.33),
    }


def test_nan_stands_for_a_number_that_is_not_printed(tmp_path: Path) -> None:
    file = tmp_path / "paper.toml"
    file.write_text(
        'paper = "P"\n[t]\nlabel = "Table 1"\ntitle = "T"\ncolumns = ["a", "b"]\n'
        'statistic = "mean"\n[t.rows.x]\nmean = [1.5, nan]\nstd = [nan, nan]\n'
    )
    assert load_published(file, "t").rows == {"x": (Value(1.5, None), None)}
