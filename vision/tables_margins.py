"""The tables and sweeps of the margins paper (Rho et al. 2023) as data."""

import dataclasses
import tomllib
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from shared import Projection, term
from shared.experiment.methods import svm_margin, trained_with
from shared.experiment.published import load_published
from shared.experiment.tables import Column, Row, Seeds, Table, Tier
from shared.lazy import (
    alignment,
    debiased_nce,
    distance_polarization,
    hard_nce,
    info_nce,
    margin_nce,
)
from vision.config import NT_XENT, Config
from vision.tables_common import (
    BASELINES,
    KNN_METRIC,
    ON,
    ON_CIFAR10,
    PGD,
    PROGRAM_PGD,
    PUBLISHED,
    QUARTER,
    Changes,
    derived,
    on_cifar10,
    row,
    small,
    table,
)

FILE = PUBLISHED / "margins.toml"
TEMPERATURE = NT_XENT.loss.kwargs["temperature"]
SEEDS: dict[Tier, tuple[int, ...]] = {"paper": (0, 1, 2), "smoke": (0,)}
DEFAULTS = Config()
METHODS = (("MoCo", "moco_v3"), ("SimCLR", "simclr"))

# Of Table 2 on 5,000 images, which is closed: most of its rows score below an untrained encoder.
SHORT: dict[str, Any] = {
    "images": 5000,
    "stem": "imagenet",
    "epochs": 12,
    "batch_size": 128,
    "warmup_epochs": 1.0,
    "learning_rate": 0.03,
    "probe_augmentation": False,
}

CIFAR10 = Column("CIFAR10", {"dataset": "CIFAR10"})
CIFAR100 = Column("CIFAR100", {"dataset": "CIFAR100"})
LARGER: dict[str, Any] = {"image_size": 64, "stem": "small", "teacher_momentum": 0.996}
STL10 = Column("STL10", {"dataset": "STL10", **LARGER})
TINY_IMAGENET = Column("TinyImageNet", {"dataset": "TinyImageNet", **LARGER})
COLUMNS = (CIFAR10, CIFAR100, STL10, TINY_IMAGENET)
TRANSFERS = tuple(
    dataclasses.replace(
        column,
        label=f"{column.label}_to_{target}",
        changes={**column.changes, "evaluate_on": target},
    )
    for column, target in (
        (CIFAR100, "CIFAR10"),
        (CIFAR10, "CIFAR100"),
        (TINY_IMAGENET, "STL10"),
        (STL10, "TinyImageNet"),
    )
)

PAPER_NOTES = "ressl-settings moco-v3 ressl-unlike"
NOTES = f"{PAPER_NOTES} last-epoch"


def _margins_table(
    name: str,
    title: str,
    rows: Sequence[Row],
    columns: Sequence[Column],
    notes: str,
    *,
    config: Config = DEFAULTS,
    **others: Any,
) -> Table:
    """A table of the four small datasets; ``others`` are further fields of it."""
    usual: dict[str, Any] = {"seeds": SEEDS, "also": (KNN_METRIC,), **others}
    return table("margins", name, title, config, rows, columns, f"{NOTES} {notes}", **usual)


def _margin(**numbers: Any) -> dict[str, Any]:
    return trained_with(term(margin_nce, **{"temperature": TEMPERATURE, **numbers}))


def _alignment(**numbers: Any) -> dict[str, Any]:
    return trained_with(term(alignment, **numbers))


def _tuned(
    columns: Sequence[Column], changes: Callable[..., Changes], of: str, number: int, **symbols: str
) -> dict[str, Changes]:
    """The objective in each column, with the hyperparameters printed for its pretraining dataset.

    changes: makes the objective from its hyperparameters. of: the paper's name of the method in
    Tables 5 to 8. number: of the table. symbols: for each argument of ``changes`` its symbol there.
    """
    printed = load_published(FILE, f"table-{number}")

    def value(symbol: str, dataset: str) -> float:
        published = printed.value(f"{of}, {symbol}", dataset)
        assert published is not None, f"{FILE}: table-{number}: {symbol} of {of} on {dataset}"
        return float(published.mean)

    return {
        column.label: changes(
            **{name: value(symbol, column.changes["dataset"]) for name, symbol in symbols.items()}
        )
        for column in columns
    }


def _variants(label: str, of: str, method: str, columns: Sequence[Column]) -> tuple[Row, ...]:
    """A method and the paper's four changes of it."""
    return (
        row(label, {"method": method}),
        *(
            row(
                f"{label} + {name}",
                {"method": method},
                notes,
                in_columns=_tuned(columns, changes, of, number, **symbols),
            )
            for name, changes, number, symbols, notes in (
                ("margins", _margin, 5, {"angular": "m1", "subtractive": "m2"}, ""),
                ("pos.", _margin, 6, {"emphasis": "s"}, ""),
                ("pos. & curv.", _margin, 7, {"emphasis": "s", "curvature": "c"}, "curvature"),
                ("ratio.", partial(_margin, ratio="row"), 8, {"angular": "m1"}, "whole-row"),
            )
        ),
    )


def _printed_rows(columns: Sequence[Column]) -> tuple[Row, ...]:
    """The rows of Tables 2 and 3, with the hyperparameters of Tables 5 to 8."""
    byol = {"method": "byol", **_alignment()}
    curved = _tuned(columns, _alignment, "BYOL", 7, curvature="c")
    return (
        *_variants("MoCo", "MoCov3", "moco_v3", columns),
        *_variants("SimCLR", "SimCLR", "simclr", columns),
        row("BYOL", byol),
        row("BYOL + curv.", byol, "curvature", in_columns=curved),
    )


def _max_margin(pairs: str, **numbers: Any) -> dict[str, Any]:
    return trained_with(svm_margin(gamma=0.5, **numbers), pairs=pairs)


def _polarized(**numbers: Any) -> dict[str, Any]:
    return trained_with(NT_XENT.loss, term(distance_polarization, weight=0.1, **numbers))


def _low_rank(**options: Any) -> dict[str, Any]:
    return trained_with(
        NT_XENT.loss, projection=Projection(0.1, {"unit_features": True, **options})
    )


TYPES = {"I": "row", "II": "positive"}  # of attenuation, in Table 1

# SimCLR with the losses of the other three papers, under this table's protocol.
OTHERS = (
    row("DCL", trained_with(term(debiased_nce, temperature=TEMPERATURE, tau_plus=0.1))),
    row("HCL", trained_with(term(hard_nce, temperature=TEMPERATURE, tau_plus=0.1, beta=1.0))),
    row("SimCLR + DP, anchor sum", _polarized()),
    row("SimCLR + DP, mean", _polarized(reduction="mean")),
    row("CLLR, l2,1", _low_rank(norm="l21", alpha=0.001), "unit-features"),
    row("CLLR, nuclear", _low_rank(norm="nuclear", alpha=0.001), "unit-features"),
    row(
        "CLLR, authors' program",
        _low_rank(form="authors", norm="none", rows=256),
        "authors-cllr-resnet18",
    ),
    row("MMCL INV, both views", _max_margin("both_views"), "inv-both other-kernel"),
    row("MMCL INV, first view", _max_margin("first_view"), "inv-first other-kernel"),
    row("MMCL PGD, both views", _max_margin("both_views", **PGD), "pgd-both other-kernel"),
)

# SimCLR with the temperature that results/tuning.py has chosen for this budget.
TUNED = row("SimCLR, tuned temperature", trained_with(term(info_nce, temperature=0.1)), "tuned")

# Rows for claims of MMCL on its slack and its kernels, for its program's solver, and for margins'
# Figures 3 and 6, whose s = 1 and 20 without curvature are MoCo and MoCo + pos., and Table 1; in
# the reduced table alone.
OF_CLAIMS = (
    row(
        "MMCL PGD, as in the program",
        _max_margin("first_view", **PROGRAM_PGD),
        "program-pgd first-view program-seeds other-kernel",
    ),
    row("MMCL INV, C = 0.01", _max_margin("both_views", cost=0.01), "inv-both other-slack"),
    row(
        "MMCL INV, linear kernel",
        trained_with(svm_margin(kernel="linear"), pairs="both_views"),
        "linear-cost inv-both",
    ),
    row(
        "MMCL INV, tanh kernel",
        trained_with(svm_margin(kernel="tanh", gamma=1.0, offset=0.0), pairs="both_views"),
        "tanh tanh-singular inv-both",
    ),
    row("MoCo, s = 80", {"method": "moco_v3", **_margin(emphasis=80.0)}, "figure-3-rows"),
    row("MoCo, s = 40", {"method": "moco_v3", **_margin(emphasis=40.0)}, "figure-6-rows"),
    *(
        row(
            f"MoCo, s = {emphasis:g}, c = 1/3",
            {"method": "moco_v3", **_margin(emphasis=emphasis, curvature=0.3333)},
            "figure-6-rows curvature",
        )
        for emphasis in (20.0, 40.0)
    ),
    *(
        row(
            f"MoCo, alpha = 1, type {name}",
            {"method": "moco_v3", **_margin(attenuation=1.0, attenuation_scope=scope)},
            "table-1-rows attenuation",
        )
        for name, scope in TYPES.items()
    ),
)

TABLE_1 = _margins_table(
    "table-1",
    "Attenuation of gradients, type I (all of an anchor's) and type II (the positive's)",
    [
        row(
            f"{label}, alpha={alpha:g}",
            {"method": method},
            in_columns={
                f"{column.label}_type{name}": _margin(attenuation=alpha, attenuation_scope=scope)
                for column in COLUMNS
                for name, scope in TYPES.items()
                if alpha
            },
        )
        for label, method in METHODS
        for alpha in (0.0, 0.25, 1.0)
    ],
    [
        dataclasses.replace(column, label=f"{column.label}_type{name}")
        for column in COLUMNS
        for name in TYPES
    ],
    "alpha-0 attenuation",
)

TABLE_2 = _margins_table(
    "table-2",
    "Linear probing: margins and the effects they are made of",
    (
        *_printed_rows(COLUMNS),
        *OTHERS,
        row("untrained encoder", {"epochs": 0}, "untrained", baseline=True, untrained=True),
    ),
    COLUMNS,
    "emphasis-pair other-losses reduced-probe reduced-seeds closed-5000",
    short=SHORT,
    seeds={**SEEDS, "short": (0, 1, 2)},
    references=tuple(
        load_published(PUBLISHED / "references.toml", name) for name in ("benchmark-mnn", "ressl")
    ),
)

TABLE_3 = _margins_table(
    "table-3",
    "Transfer: pretrained on one dataset, probed on another",
    _printed_rows(TRANSFERS),
    TRANSFERS,
    "transfer transfer-tuned",
)

# facebookresearch/moco-v3, for a ResNet-50: two directions, temperature 1, cosine EMA, LARS at
# 0.6 * batch / 256
MOCO_V3: dict[str, Any] = {
    "method": "moco_v3",
    "head_hidden": 4096,
    "head_output": 256,
    "predictor_hidden": 4096,
    "symmetric": True,
    "teacher_schedule": "cosine",
    "learning_rate": 9.6,
    "weight_decay": 1e-6,
}
# Its head, its two views, and its loss: both directions added, times 2 tau.
MOCO_V3_PROGRAM: dict[str, Any] = {
    **MOCO_V3,
    "head_output_norm": True,
    "head_output_scale": False,
    "augmentations": ("moco_v3_first", "moco_v3_second"),
    "loss_factor": 4.0,
}
# google-research/simclr: LARS at 0.075 * sqrt(batch)
SIMCLR: dict[str, Any] = {"learning_rate": 4.8, "weight_decay": 1e-4}

TABLE_4 = table(
    "margins",
    "table-4",
    "ResNet-50 on ImageNet",
    Config(
        dataset="ImageNet",
        image_size=224,
        backbone="resnet50",
        stem="imagenet",
        augmentations=("simclr", "simclr"),
        batch_size=4096,
        epochs=100,
        optimiser="lars",
        warmup_epochs=10.0,
        protocol="linear-mocov3-v1",
    ),
    [
        *(
            row(
                f"{label}{ending}",
                {**changes, **_margin(temperature=1.0, **numbers)},
                f"{reading} {notes}",
                published=label,
            )
            for ending, changes, reading in (
                ("", MOCO_V3, "text-only"),
                (", authors' program", MOCO_V3_PROGRAM, "moco-v3-program"),
            )
            for label, numbers, notes in (
                ("MoCov3", {}, ""),
                ("MoCov3 + pos. & curv.", {"emphasis": 10.0, "curvature": 1.5}, "curvature"),
            )
        ),
        row("SimCLR", {**SIMCLR, **_margin(temperature=0.1)}, "simclr-probe"),
        row(
            "SimCLR + pos. & curv.",
            {**SIMCLR, **_margin(temperature=0.1, emphasis=2.0, curvature=1.0)},
            "simclr-probe curvature",
        ),
    ],
    [Column("top1")],
    "official-programs",
    seeds=SEEDS,
    also=(KNN_METRIC,),
)

# Five times as long as the other tables, as in the paper.
LONG = Config(epochs=1000)
LONG_ROWS = tuple(
    row(f"s={emphasis:g}", {"method": "moco_v3", **_margin(emphasis=emphasis)})
    for emphasis in (1.0, 10.0, 20.0, 40.0)
)


TABLE_9 = _margins_table(
    "table-9", "MoCo with emphasis on positives, 1000 epochs", LONG_ROWS, COLUMNS, "", config=LONG
)

TABLE_10 = _margins_table(
    "table-10",
    "Transfer of MoCo with emphasis on positives, 1000 epochs",
    LONG_ROWS,
    TRANSFERS,
    "transfer",
    config=LONG,
)

EMPHASES = {
    "MoCo": (1.0, 2.0, 5.0, 10.0, 20.0, 40.0, 80.0),
    "SimCLR": (1.0, 1.0625, 1.125, 1.25, 2.0, 2.5, 5.0),
}


def _note_of(method: str, emphasis: float) -> str:
    return "collapsing" if method == "simclr" and emphasis == 5 else ""


def _grid(figure: str, symbol: str) -> tuple[float, ...]:
    """The values that a figure is plotted at, as the paper gives them."""
    content = tomllib.loads(FILE.read_text(encoding="utf-8"))
    return tuple(float(value) for value in content[figure]["grid"][symbol])


CURVATURES = _grid("figure-5", "c")

# By name: title, rows, columns, notes.
SWEEPS: dict[str, tuple[str, list[Row], tuple[Column, ...], str]] = {
    "figure-3": (
        "Emphasis s on positives",
        [
            row(
                f"{label}, s={emphasis:g}",
                {"method": method, **_margin(emphasis=emphasis)},
                _note_of(method, emphasis),
            )
            for label, method in METHODS
            for emphasis in EMPHASES[label]
        ],
        COLUMNS,
        "emphasis-grid emphasis-says",
    ),
    "figure-4": (
        "SimCLR: emphasis s and batch size on CIFAR-10",
        [
            row(f"s={emphasis:g}", _margin(emphasis=emphasis), _note_of("simclr", emphasis))
            for emphasis in EMPHASES["SimCLR"]
        ],
        tuple(
            Column(f"batch {size}", {"batch_size": size, "learning_rate": 0.06 * size / 256})
            for size in (64, 128, 256, 512, 1024)
        ),
        "batch-grid batch-says",
    ),
    "figure-5": (
        "Curvature c without emphasis",
        [
            *(row(label, {"method": method}) for label, method in METHODS),
            row("BYOL", {"method": "byol", **_alignment()}),
            *(
                row(
                    f"{label}, c={curvature:g}",
                    {"method": method, **objective(curvature=curvature)},
                    "curvature",
                )
                for label, method, objective in (
                    *((label, method, _margin) for label, method in METHODS),
                    ("BYOL", "byol", _alignment),
                )
                for curvature in CURVATURES
            ),
        ],
        COLUMNS,
        "curvature-says",
    ),
    "figure-6": (
        "MoCo: emphasis s and curvature c together",
        [
            row(
                f"s={emphasis:g}, c={curvature:g}",
                {"method": "moco_v3", **_margin(emphasis=emphasis, curvature=curvature)},
                "curvature",
            )
            for emphasis in (10.0, 20.0, 40.0)
            for curvature in CURVATURES
        ],
        COLUMNS,
        "joint-grid joint-says",
    ),
    "figure-7": (
        "Gradients scaled by the ratio of denominators with and without the angular margin m1",
        [
            *(row(f"{label}, m1=0", {"method": method}) for label, method in METHODS),
            *(
                row(
                    f"{label}, m1={angular:g}",
                    {"method": method, **_margin(ratio="row", angular=angular)},
                    "whole-row",
                )
                for label, method in METHODS
                for angular in _grid("figure-7", "m1")
            ),
        ],
        COLUMNS,
        "ratio-says",
    ),
}
FIGURES = tuple(
    _margins_table(name, title, rows, columns, notes)
    for name, (title, rows, columns, notes) in SWEEPS.items()
)

# Twenty epochs: a quarter of an hour for SimCLR's rows, nine minutes for those with a teacher.
CIFAR10_ROWS = [*(each for each in TABLE_2.rows if not each.baseline), *OF_CLAIMS, TUNED]
# How many seeds a row has; all others, the trivial baselines included, have three.
SEEDS_OF_ROWS = {
    "CLLR, authors' program": 1,
    "MMCL INV, first view": 1,
    "MMCL PGD, as in the program": 5,
    "SimCLR": 7,
    "SimCLR + margins": 7,
    "MoCo + pos.": 8,
    "MoCo + pos. & curv.": 8,
    "SimCLR + pos.": 8,
    "SimCLR + pos. & curv.": 8,
    "HCL": 8,
    "SimCLR + DP, anchor sum": 8,
    "CLLR, l2,1": 8,
    "CLLR, nuclear": 8,
    "MMCL INV, both views": 8,
    "MMCL PGD, both views": 8,
    "MMCL INV, C = 0.01": 8,
    "MMCL INV, tanh kernel": 8,
    "MoCo, s = 80": 8,
    "MoCo, s = 40": 8,
    "MoCo, s = 20, c = 1/3": 8,
    "MoCo, s = 40, c = 1/3": 8,
    "SimCLR, tuned temperature": 8,
    "MoCo": 10,
    "MoCo + ratio.": 10,
}
# Rows whose seeds were all declared before the first of them had been seen.
AT_ONCE = {each.label for each in (*OF_CLAIMS, TUNED)}

TABLE_2_CIFAR10 = derived(
    TABLE_2,
    ON,
    "CIFAR-10",
    (CIFAR10,),
    f"{PAPER_NOTES} other-losses claimed-seeds gpu-seeds feature-128 choice other-values",
    short=ON_CIFAR10,
    rows=CIFAR10_ROWS,
    title="CIFAR-10 on one core: margins, their effects, and the losses of the other papers",
    seeds={"short": tuple(range(10)), "smoke": (0,)},
    failed={
        "failed: the kernel's matrix became singular": Seeds(
            (1, 2, 3, 4, 5, 7), rows=("MMCL INV, tanh kernel",), tiers=("short",)
        )
    },
    post_hoc_seeds={
        "short": {
            label: 3 for label, count in SEEDS_OF_ROWS.items() if count > 3 and label not in AT_ONCE
        }
    },
    seed_exceptions=tuple(
        Seeds(tuple(range(SEEDS_OF_ROWS.get(each.label, 3))), rows=(each.label,), tiers=("short",))
        for each in (*CIFAR10_ROWS, *BASELINES)
    ),
)

# Whether emphasis does not help MoCo in TABLE_2_CIFAR10 for want of training.
LONGER_ROWS = ("MoCo", "MoCo + pos.")
TABLE_2_LONGER = derived(
    TABLE_2,
    "-longer-cifar10",
    "CIFAR-10",
    (CIFAR10,),
    f"{PAPER_NOTES} longer-seeds feature-128",
    short={**ON_CIFAR10, "epochs": 80, "warmup_epochs": 4.0},
    rows=[each for each in TABLE_2.rows if each.label in LONGER_ROWS],
    title="CIFAR-10, trained four times as long: MoCo and emphasis on positives",
    seeds={"short": tuple(range(6)), "smoke": (0,)},
    published=TABLE_2.published.part(["CIFAR10"], LONGER_ROWS),
    references=(),
)

# The pretraining of the rows of the same names in TABLE_2_CIFAR10.
TRANSFERRED = ("MoCo", "MoCo + pos.", "MoCo + pos. & curv.")
TABLE_3_CIFAR10 = derived(
    TABLE_3,
    ON,
    "CIFAR-10 to CIFAR-100",
    [column for column in TRANSFERS if column.label == "CIFAR10_to_CIFAR100"],
    f"{PAPER_NOTES} transfer-seeds feature-128 choice",
    short=ON_CIFAR10,
    rows=[each for each in TABLE_3.rows if each.label in TRANSFERRED],
    seeds={"short": tuple(range(8)), "smoke": (0,)},
    published=TABLE_3.published.part(["CIFAR10_to_CIFAR100"], TRANSFERRED),
)

MARGINS: tuple[Table, ...] = (
    TABLE_1,
    TABLE_2,
    TABLE_3,
    TABLE_4,
    TABLE_9,
    TABLE_10,
    *FIGURES,
    TABLE_2_CIFAR10,
    TABLE_2_LONGER,
    TABLE_3_CIFAR10,
    *(
        on_cifar10(
            figure,
            [column for column in figure.columns if column not in COLUMNS[1:]],
            f"{PAPER_NOTES} {SWEEPS[figure.name][3]} choice",
            short=QUARTER,
        )
        for figure in FIGURES
    ),
    small(TABLE_4),
)
