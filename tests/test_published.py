"""The transcribed numbers of the papers load and are the printed ones."""

import math
import statistics
import tomllib
from pathlib import Path

import pytest

from shared.experiment.tables import Published, Value, load_published

ROOT = Path(__file__).resolve().parents[1]
GRAPH = ROOT / "graph" / "published"
RL = ROOT / "rl" / "published"
TEXT = ROOT / "text" / "published"
VIDEO = ROOT / "video" / "published"
VISION = ROOT / "vision" / "published"
FILES = sorted(set(ROOT.glob("*/published/*.toml")) - set(ROOT.glob("*/published/claims.toml")))


def tables() -> list[tuple[Path, str]]:
    found = []
    for file in FILES:
        content = tomllib.loads(file.read_text(encoding="utf-8"))
        found += [(file, key) for key, entry in content.items() if isinstance(entry, dict)]
    return found


def row(published: Published, label: str) -> dict[str, tuple[float, float | None]]:
    values = zip(published.columns, published.rows[label], strict=True)
    return {column: (value.mean, value.std) for column, value in values if value is not None}


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


def test_lmcl_in_vision() -> None:
    file = VISION / "lmcl.toml"
    toy = load_published(file, "table-1")
    assert toy.source.endswith("Distance Polarization Regularizer, Table 1")
    assert toy.statistic == "mean ± std over 20 random trials, K-means accuracy in %"
    assert row(toy, "Euclidean space") == {"three_bars": (75.2, 1.2), "nested_moons": (77.3, 2.3)}
    assert row(toy, "LMCT (ours)") == {"three_bars": (84.2, 0.2), "nested_moons": (85.2, 2.3)}
    imagenet = load_published(file, "table-2")
    assert row(imagenet, "SwAV") == {
        "n1024_top1": (60.93, None),
        "n1024_top5": (79.43, None),
        "n4096_top1": (75.78, None),
        "n4096_top5": (92.86, None),
    }
    assert row(imagenet, "LMCL(CMC+DP)")["n4096_top1"] == (75.67, None)
    assert "75.88" in imagenet.warnings[0]
    sensitivity = load_published(file, "table-3")
    assert [value and value.mean for value in sensitivity.rows["lambda=0.01"]] == [
        80.4,
        81.3,
        81.2,
        81.2,
        80.8,
    ]
    assert sensitivity.value("lambda=5", "tau_0.4") == Value(80.5)


def test_cllr_in_vision() -> None:
    file = VISION / "cllr.toml"
    dimensions = load_published(file, "table-1")
    assert len(dimensions.rows) == 11
    assert row(dimensions, "4096-dim (w/o R)") == {
        "stl10_ep100": (55.1, 1.1),
        "stl10_ep400": (75.2, 3.1),
        "cifar10_ep100": (65.1, 1.9),
        "cifar10_ep400": (85.4, 4.2),
    }
    assert row(dimensions, "256-dim (w/ nuclear)")["cifar10_ep400"] == (93.1, 1.3)
    assert dimensions.notes["256-dim (w/o R)"] == "printed as 512"
    assert dimensions.warnings[0].startswith("Confidence: LOW.")
    imagenet = load_published(file, "table-3")
    assert imagenet.value("CO2", "n1024_top1") == Value(61.21)
    assert imagenet.value("CLLR(CMC+nuclear-norm)", "n4096_top1") == Value(76.91)


def test_mmcl_in_vision() -> None:
    file = VISION / "mmcl.toml"
    transfer = load_published(file, "table-1")
    assert row(transfer, "InsDis")["crop_diseases"] == (91.95, 0.44)
    assert row(transfer, "Ours (MMCL)") == {
        "aircraft": (85.38, None),
        "cars": (89.23, None),
        "dtd": (73.51, None),
        "flowers": (95.24, None),
        "food": (82.39, None),
        "crop_diseases": (93.10, 0.45),
        "eurosat": (88.75, 0.40),
        "nyuv2_median_angular_error": (24.69, None),
    }
    for key, label, column, number in (
        ("table-2", "MoCHI", "top1", 79.0),
        ("table-2", "Ours (MMCL)", "top1", 80.7),
        ("table-3", "SimCLR (510 negatives)", "top1", 60.62),
        ("table-3", "Ours (MMCL)", "top1", 63.8),
        ("table-6", "linear x.y", "cifar100", 41.43),
        ("table-6", "RBF exp(-|x-y|^2/(2 sigma^2))", "stl10", 81.33),
        ("table-7", "HCL", "batch64", 80.39),
        ("table-7", "Ours (MMCL)", "batch128", 86.8),
        ("table-8", "MMCL_PGD", "stl10", 88.03),
        ("table-8", "MMCL_INV", "cifar100", 68.81),
        ("longer-training", "Ours (MMCL)", "epochs_400", 69.9),
        ("longer-training", "SimCLR", "epochs_200", 62.0),
    ):
        assert load_published(file, key).value(label, column) == Value(number), (key, label)


def test_margins() -> None:
    file = VISION / "margins.toml"
    linear = load_published(file, "table-2")
    assert len(linear.rows) == 12
    assert row(linear, "MoCo + pos.") == {
        "CIFAR10": (90.663, 0.159),
        "CIFAR100": (65.413, 0.205),
        "STL10": (90.357, 0.398),
        "TinyImageNet": (48.273, 0.405),
    }
    for key, label, column, value in (
        ("table-1", "MoCo, alpha=0.25", "CIFAR10_typeII", Value(89.713)),
        ("table-1", "SimCLR, alpha=1", "TinyImageNet_typeI", Value(44.26)),
        ("table-2", "BYOL + curv.", "TinyImageNet", Value(43.332, 0.564)),
        ("table-3", "MoCo", "CIFAR100_to_CIFAR10", Value(75.417, 0.241)),
        ("table-3", "SimCLR + ratio.", "STL10_to_TinyImageNet", Value(35.237, 0.032)),
        ("table-4", "MoCov3 + pos. & curv.", "top1", Value(70.9)),
        ("table-4", "SimCLR", "top1", Value(64.7)),
        ("table-9", "s=1", "CIFAR100", Value(65.010, 0.215)),
        ("table-9", "s=40", "STL10", Value(91.098, 0.209)),
        ("table-10", "s=10", "CIFAR10_to_CIFAR100", Value(53.028, 0.569)),
        ("table-10", "s=20", "TinyImageNet_to_STL10", Value(78.623, 0.193)),
    ):
        assert load_published(file, key).value(label, column) == value, (key, label)


def test_hyperparameters_of_margins() -> None:
    file = VISION / "margins.toml"
    for key, label, numbers in (
        ("table-5", "MoCov3, m1", [0.1, 0.5, 0.4, 0.1]),
        ("table-5", "SimCLR, m2", [0.4, 0.6, 0.2, 0.8]),
        ("table-6", "MoCov3, s", [20, 20, 40, 20]),
        ("table-6", "SimCLR, s", [1.125, 1.0625, 1.0625, 1.0625]),
        ("table-7", "MoCov3, c", [0.7, 1, 2.5, 2.5]),
        ("table-7", "SimCLR, s", [2.5, 2, 1.25, 1.125]),
        ("table-7", "BYOL, c", [1, 2.5, 5, 2.5]),
        ("table-8", "MoCov3, m1", [1.6, 1.6, 0.4, 1.6]),
        ("table-8", "SimCLR, m1", [0.2, 0.2, 0.4, 0.2]),
    ):
        published = load_published(file, key)
        assert published.columns == ("CIFAR10", "CIFAR100", "STL10", "TinyImageNet")
        assert [mean for mean, _ in row(published, label).values()] == numbers, (key, label)


COPIED = {
    "QT": [76.8, 81.3, 86.6, 93.4, 89.8, 73.6],
    "DCL": [76.2, 82.9, 86.9, 93.7, 89.1, 74.7],
    "HCL": [77.4, 83.6, 86.8, 93.4, 88.7, 73.5],
}


@pytest.mark.parametrize(
    ("file", "key", "source", "numbers"),
    [
        (
            "lmcl.toml",
            "table-4",
            "Large-Margin Contrastive Learning with Distance Polarization Regularizer, Table 4",
            {
                **COPIED,
                "LMCL(QT+DP)": [77.3, 82.3, 86.9, 93.7, 90.2, 74.1],
                "LMCL(DCL+DP)": [77.2, 83.7, 87.2, 93.8, 90.1, 75.1],
                "LMCL(HCL+DP)": [78.1, 83.5, 87.2, 94.0, 89.1, 74.2],
            },
        ),
        (
            "cllr.toml",
            "table-2",
            "Learning Contrastive Embedding in Low-Dimensional Space, Table 2",
            {
                **COPIED,
                "CLLR(DCL+l21-norm)": [77.9, 83.3, 87.9, 93.7, 91.3, 75.2],
                "CLLR(DCL+nuclear-norm)": [78.2, 83.7, 87.2, 95.8, 91.2, 75.7],
            },
        ),
    ],
)
def test_text(file: str, key: str, source: str, numbers: dict[str, list[float]]) -> None:
    published = load_published(TEXT / file, key)
    assert published.source == source
    assert published.columns == ("MR", "CR", "SUBJ", "MPQA", "TREC", "MSRP")
    assert published.rows == {
        label: tuple(Value(mean) for mean in means) for label, means in numbers.items()
    }
    assert "SUBJ and MPQA columns are" in published.warnings[0]


CONTROL = ("Spin", "Swingup", "Easy", "Run", "Walk", "Catch")
# Of both papers, which print the same three rows.
CURL_ROWS = {
    "CURL": ([413, 680, 908, 298, 621, 826], [53, 32, 86, 38, 121, 42]),
    "DCL": ([422, 672, 878, 248, 626, 836], [23, 52, 96, 98, 98, 12]),
    "HCL": ([420, 678, 869, 268, 623, 819], [61, 82, 116, 42, 26, 62]),
}


@pytest.mark.parametrize(
    ("file", "key", "source", "numbers"),
    [
        (
            "lmcl.toml",
            "table-5",
            "Large-Margin Contrastive Learning with Distance Polarization Regularizer, Table 5",
            {
                **CURL_ROWS,
                "LMCL(CURL+DP)": ([423, 682, 926, 296, 625, 842], [63, 13, 73, 32, 53, 27]),
                "LMCL(DCL+DP)": ([423, 683, 909, 287, 625, 843], [33, 93, 87, 67, 93, 37]),
                "LMCL(HCL+DP)": ([421, 681, 910, 292, 626, 832], [51, 83, 95, 78, 89, 83]),
            },
        ),
        (
            "cllr.toml",
            "table-4",
            "Learning Contrastive Embedding in Low-Dimensional Space, Table 4",
            {
                **CURL_ROWS,
                "CLLR(CURL+)": ([424, 683, 925, 296, 625, 843], [53, 23, 33, 32, 23, 17]),
                "CLLR(DCL+)": ([423, 684, 919, 287, 625, 844], [13, 83, 57, 67, 33, 27]),
                "CLLR(HCL+)": ([422, 681, 911, 292, 626, 839], [41, 13, 85, 78, 59, 33]),
            },
        ),
    ],
)
def test_rl(
    file: str, key: str, source: str, numbers: dict[str, tuple[list[int], list[int]]]
) -> None:
    published = load_published(RL / file, key)
    assert published.source == source
    assert published.columns == CONTROL
    assert published.rows == {
        label: tuple(map(Value, means, deviations))
        for label, (means, deviations) in numbers.items()
    }
    assert "3 random trials" in published.statistic
    assert ("does not match the CURL paper's" in published.warnings[0]) is (key == "table-5")
    assert ("equals LMCL Table 5's" in published.warnings[1]) is (key == "table-4")


@pytest.mark.parametrize(
    ("key", "label", "means", "deviations"),
    [
        ("curl-100k", "CURL", [767, 582, 538, 299, 403, 769], [56, 146, 233, 48, 24, 43]),
        ("curl-100k", "PlaNet", [136, 297, 20, 138, 224, 0], [216, 39, 50, 88, 48, 0]),
        ("curl-100k", "Dreamer", [341, 326, 314, 235, 277, 246], [70, 27, 155, 137, 12, 174]),
        ("curl-100k", "SAC+AE", [740, 311, 274, 267, 394, 391], [64, 11, 14, 24, 22, 82]),
        ("curl-100k", "SLACv1", [693, None, None, 319, 361, 512], [141, None, None, 56, 73, 110]),
        ("curl-100k", "Pixel SAC", [179, 419, 145, 197, 42, 312], [66, 40, 30, 15, 12, 63]),
        ("curl-100k", "State SAC", [811, 835, 746, 616, 891, 746], [46, 22, 25, 18, 82, 91]),
        ("curl-500k", "CURL", [926, 841, 929, 518, 902, 959], [45, 45, 44, 28, 43, 27]),
        ("curl-500k", "Pixel SAC", [179, 419, 145, 197, 42, 312], [166, 40, 30, 15, 12, 63]),
        ("curl-500k", "State SAC", [923, 848, 923, 795, 948, 974], [21, 15, 24, 30, 54, 33]),
        ("curl-issue-15", "CURL", [828, 809, 951, 526, 892, 846], [137, 39, 27, 59, 49, 103]),
        (
            "drq",
            "DrQ, 100K environment steps",
            [901, 777, 620, 367, 634, 912],
            [99, 62, 143, 42, 160, 38],
        ),
        ("drq", "DrQ, 100K agent steps", [941, 870, 951, 609, 759, 965], [96, 9, 57, 68, 93, 6]),
        (
            "drq",
            "DrQ, 500K environment steps",
            [939, 869, 956, 639, 924, 964],
            [98, 9, 33, 85, 41, 7],
        ),
    ],
)
def test_references_of_the_rl_domain(
    key: str, label: str, means: list[int | None], deviations: list[int | None]
) -> None:
    published = load_published(RL / "references.toml", key)
    assert published.columns == CONTROL
    assert published.rows[label] == tuple(
        None if mean is None else Value(mean, deviation)
        for mean, deviation in zip(means, deviations, strict=True)
    )


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


VIDEO_COLUMNS = ("RGB linear", "RGB R@1", "Flow linear", "Flow R@1")


@pytest.mark.parametrize(
    ("file", "key", "source", "numbers"),
    [
        (
            "mmcl.toml",
            "table-5",
            "Max-Margin Contrastive Learning, Table 5",
            {"MoCo-v2": [46.8, 33.1, 66.8, 45.2], "MMCL": [52.45, 45.6, 68.01, 50.94]},
        ),
        (
            "references.toml",
            "coclr",
            "TengdaHan/CoCLR, README and issues 19 and 21",
            {
                "InfoNCE, 500 epochs": [46.8, None, None, None],
                "InfoNCE, 800 epochs": [52.3, None, None, None],
                "InfoNCE, released checkpoints": [None, 33.1, None, 45.2],
                "CoCLR": [70.2, 51.8, None, 48.4],
            },
        ),
    ],
)
def test_video(file: str, key: str, source: str, numbers: dict[str, list[float | None]]) -> None:
    published = load_published(VIDEO / file, key)
    assert published.source == source
    assert published.columns == VIDEO_COLUMNS
    assert published.rows == {
        label: tuple(None if mean is None else Value(mean) for mean in means)
        for label, means in numbers.items()
    }


def test_references_of_the_vision_domain() -> None:
    file = VISION / "references.toml"
    assert row(load_published(file, "benchmark-mnn"), "BYOL") == {
        "CIFAR10": (89.5, None),
        "CIFAR100": (63.2, None),
        "TinyImageNet": (45.3, None),
    }
    assert load_published(file, "ressl").value("MoCoV2", "STL10") == Value(85.88)
    assert load_published(file, "dcl").value("DCL, tau_plus = 0.1", "STL10") == Value(84.26)
    assert load_published(file, "hcl").value("HCL, beta = 1", "STL10") == Value(87.44)


def test_nan_stands_for_a_number_that_is_not_printed(tmp_path: Path) -> None:
    file = tmp_path / "paper.toml"
    file.write_text(
        'paper = "P"\n[t]\nlabel = "Table 1"\ntitle = "T"\ncolumns = ["a", "b"]\n'
        'statistic = "mean"\n[t.rows.x]\nmean = [1.5, nan]\nstd = [nan, nan]\n'
    )
    assert load_published(file, "t").rows == {"x": (Value(1.5, None), None)}
