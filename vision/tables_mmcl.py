"""MMCL's vision tables as data."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from shared import term
from shared.experiment.methods import svm_margin, trained_with
from shared.experiment.published import load_published
from shared.experiment.tables import Column, Row, Seeds, Table
from shared.lazy import info_nce
from vision import tables_margins as margins
from vision.config import HCL, MMCL_IMAGENET, Config
from vision.datasets import DATASETS
from vision.tables_common import (
    CMC_TWO,
    DCL,
    HARD,
    HCL_NOTES,
    HCL_QUARTER,
    KNN_METRIC,
    ON,
    ON_CIFAR10,
    PGD,
    PROGRAM_PGD,
    PUBLISHED,
    REFERENCES,
    SIMCLR,
    SMALL_SETS,
    STL10,
    WITHOUT_NETWORK,
    derived,
    on_cifar10,
    row,
    small,
    smaller_rows,
    table,
)

OURS = "Ours (MMCL)"
# The width of the RBF kernel as a multiplier of the squared distance: see the kernels' notes.
CIFAR100_GAMMA, STL10_GAMMA, IMAGENET_GAMMA = 0.02, 0.5, 0.1
# Epochs counted from 0: the program counts from 1 and changes it before epochs 75 and 125.
CIFAR100_SCHEDULE = ((74, 10.0), (124, 10.0))


def _max_margin(*, pairs: str | None = None, **numbers: Any) -> dict[str, Any]:
    changes = trained_with(svm_margin(**numbers))
    return changes if pairs is None else {**changes, "pairs": pairs}


def _rbf(**numbers: Any) -> Mapping[str, Mapping[str, Any]]:
    """Changes in the columns of CIFAR-100 and STL-10, whose kernel widths differ."""
    return {
        "cifar100": {
            **_max_margin(gamma=CIFAR100_GAMMA, **numbers),
            "gamma_schedule": CIFAR100_SCHEDULE,
        },
        "stl10": _max_margin(gamma=STL10_GAMMA, **numbers),
    }


CIFAR100_AND_STL10 = (Column("cifar100", {"dataset": "CIFAR100"}), Column("stl10", STL10))


# ImageNet

MMCL_ON_IMAGENET: dict[str, Any] = {**MMCL_IMAGENET, "dataset": "ImageNet"}
IMAGENET_NOTES = "imagenet-kernel imagenet-settings one-seed"
IMAGENET_SIMCLR = trained_with(term(info_nce, temperature=0.1), pairs="both")
# Chen et al. 2020 (MoCo v2) and its program.
MOCO_V2: dict[str, Any] = {
    "statistics": "ImageNet",
    "head_output_norm": False,
    "method": "moco_v2",
    "pairs": "both",
    **trained_with(term(info_nce, temperature=0.2)),
    "teacher_momentum": 0.999,
    "augmentations": ("ressl_strong", "ressl_strong"),
    "optimiser": "sgd",
    "learning_rate": 0.03,
    "weight_decay": 1e-4,
    "warmup_epochs": 0.0,
}
# He et al. 2020 (MoCo) and its program: a linear head, no blur, temperature 0.07, steps.
MOCO_V1: dict[str, Any] = {
    **MOCO_V2,
    "head_layers": 1,
    **trained_with(term(info_nce, temperature=0.07)),
    "augmentations": ("cmc", "cmc"),
    "schedule": "steps",
    "milestones": (120, 160),
    "queue": 16_000,
}


def _imagenet_rows(variant: str) -> tuple[Row, ...]:
    """The readings of MMCL's row on ImageNet; ``variant`` notes which one it may have been."""
    program = {**PROGRAM_PGD, "cost": math.inf, "pairs": "first_view"}
    return tuple(
        row(
            label,
            _max_margin(gamma=IMAGENET_GAMMA, **numbers),
            f"{variant} {notes}",
            published=OURS,
        )
        for label, numbers, notes in (
            ("MMCL_PGD", PGD, "pgd both-views"),
            ("MMCL_PGD, as in the program", program, "program-pgd no-cost first-view"),
            ("MMCL_INV", {}, "inv both-views"),
        )
    )


def _with_queues(queue: int, start: int) -> tuple[Row, ...]:
    """MoCo v2 and MoCHI with ``queue`` keys; MoCHI mixes from epoch ``start`` on."""
    moco = {**MOCO_V2, "queue": queue}
    mochi = {**moco, "mixed": (1024, 1024, 128), "mixed_from": float(start)}
    return (row("MoCo-v2", moco, "moco-v2"), row("MoCHI", mochi, f"moco-v2 mochi-{start}"))


# Rows of Table 1 that the paper has from public checkpoints, and which ones: vision.checkpoints.
OTHER_MODELS = {
    "Supervised": "supervised",
    "InsDis": "insdis",
    "MoCo": "moco-v1",
    "PCL-v1": "pcl-v1",
    "PCL-v2": "pcl-v2",
    "MoCo-v2": "moco-v2",
    "MoCHI": "mochi",
}
TRANSFER_ROWS = (
    *(
        row(
            label,
            {
                "weights": f"{name}-resnet50",
                "statistics": "ImageNet",
                "epochs": 0,
                "warmup_epochs": 0.0,
            },
            "checkpoint",
        )
        for label, name in OTHER_MODELS.items()
    ),
    *_imagenet_rows("variant-checkpoint"),
)
TABLE_1_PRINTED = load_published(PUBLISHED / "mmcl.toml", "table-1")


def _transfer_table(
    name: str, title: str, protocol: str, kind: str, datasets: Mapping[str, str]
) -> Table:
    """A part of Table 1, by one kind of protocol: each column has a dataset, with its metric."""
    metrics = {label: DATASETS[of].metric for label, of in datasets.items()}
    columns = [
        Column(
            label,
            {"evaluate_on": of},
            metric="" if metrics[label] == "top1" else f"{kind}_{metrics[label]}",
        )
        for label, of in datasets.items()
    ]
    return table(
        "mmcl",
        name,
        f"Transfer of a model pretrained on ImageNet: {title}",
        Config(**{**MMCL_ON_IMAGENET, "protocol": protocol}),
        TRANSFER_ROWS,
        columns,
        f"transfer-suite nyuv2 {IMAGENET_NOTES}",
        of="Table 1",
        published=TABLE_1_PRINTED.part(datasets),
        metric=f"{kind}_top1",
        # The checkpoints have nothing to train, and so nothing to do on embedded data.
        seed_exceptions=(Seeds((), rows=tuple(OTHER_MODELS), tiers=("smoke",)),),
    )


TABLE_1 = _transfer_table(
    "table-1",
    "fine-tuned",
    "fine-tuned-v1",
    "finetuned",
    {name.lower(): name for name in ("Aircraft", "Cars", "DTD", "Flowers", "Food")},
)
TABLE_1_FEW_SHOT = _transfer_table(
    "table-1-few-shot",
    "5-way few-shot episodes",
    "few-shot-5way-20shot-v1",
    "few_shot",
    {"crop_diseases": "CropDiseases", "eurosat": "EuroSAT"},
)
# The suite's other protocol, which the paper does not print, on its eleven datasets.
TABLE_1_LINEAR = _transfer_table(
    "table-1-linear",
    "logistic regression (additional)",
    "many-shot-linear-v1",
    "many_shot",
    {
        f"{name.lower()}, linear": name
        for name in (
            *("Aircraft", "Caltech101", "Cars", "CIFAR10", "CIFAR100", "DTD", "Flowers", "Food"),
            *("Pets", "SUN397", "VOC2007"),
        )
    },
)

TABLE_2 = table(
    "mmcl",
    "table-2",
    "ImageNet-100, linear evaluation",
    Config(
        **{
            **MMCL_IMAGENET,
            "dataset": "ImageNet100",
            "batch_size": 128,
            "epochs": 200,
            "warmup_epochs": 20.0,
        }
    ),
    [
        row("MoCo", MOCO_V1, "moco-v1"),
        row("CMC", {**MOCO_V1, **CMC_TWO}, "cmc as-moco-v1"),
        *_with_queues(16_000, start=10),
        *_imagenet_rows("variant-readme"),
    ],
    [Column("top1")],
    IMAGENET_NOTES,
)

TABLE_3 = table(
    "mmcl",
    "table-3",
    "ImageNet-1k, linear evaluation",
    Config(**MMCL_ON_IMAGENET),
    [
        row("SimCLR (254 negatives)", {**IMAGENET_SIMCLR, "batch_size": 128}, "simclr-254"),
        row("SimCLR (510 negatives)", IMAGENET_SIMCLR, "simclr-510"),
        *_with_queues(65_536, start=15),
        *_imagenet_rows("variant-checkpoint"),
    ],
    [Column("top1")],
    IMAGENET_NOTES,
)

LONGER_TRAINING = table(
    "mmcl",
    "longer-training",
    "ImageNet-1k, more epochs",
    Config(**MMCL_ON_IMAGENET),
    [*_imagenet_rows("variant"), row("SimCLR", IMAGENET_SIMCLR, "simclr-temperature")],
    [
        Column(f"epochs_{epochs}", {"epochs": epochs, "warmup_epochs": epochs / 10})
        for epochs in (200, 400)
    ],
    f"{IMAGENET_NOTES} longer-rate",
    of="text, 'Longer Training'",
)

# CIFAR-100 and STL-10, by the protocol of DCL's and HCL's programs

KERNEL_NOTES = "kernel-cifar100 kernel-stl10"
KNN: dict[str, Any] = {**HCL, "protocol": "knn-200-v1"}
TANH = "tanh(-gamma x.y + eta)"

TABLE_6 = table(
    "mmcl",
    "table-6",
    "Kernels: k-NN after 200 epochs",
    Config(**{**KNN, "epochs": 200, "pairs": "both_views"}),
    [
        row("linear x.y", _max_margin(kernel="linear"), "linear-cost inv both-views"),
        row(
            TANH,
            _max_margin(kernel="tanh", gamma=1.0, offset=0.0),
            "tanh tanh-indefinite inv both-views",
        ),
        row(
            "tanh(gamma x.y), first view, authors' diagonal",
            _max_margin(
                kernel="tanh", gamma=1.0, offset=0.0, unit_diagonal=True, pairs="first_view"
            ),
            "tanh tanh-diagonal tanh-indefinite inv first-view",
            published=TANH,
        ),
        row("RBF exp(-|x-y|^2/(2 sigma^2))", {}, "variant inv both-views", in_columns=_rbf()),
    ],
    CIFAR100_AND_STL10,
    f"knn {KERNEL_NOTES} {HCL_NOTES} one-seed",
    metric=KNN_METRIC,
)

INV_ON_STL10 = _max_margin(gamma=STL10_GAMMA, pairs="both_views")

TABLE_7 = table(
    "mmcl",
    "table-7",
    "STL-10, accuracy against batch size",
    Config(**{**HCL, **STL10}),
    [
        row("SimCLR", trained_with(SIMCLR)),
        row("DCL", trained_with(DCL), "dcl-program"),
        row("HCL", trained_with(HARD), "hcl-program"),
        row("MMCL_INV", INV_ON_STL10, "variant-table-8 inv both-views", published=OURS),
        row(
            "MMCL_INV, first view",
            _max_margin(gamma=STL10_GAMMA, pairs="first_view"),
            "inv first-view",
            published=OURS,
        ),
    ],
    [Column(f"batch{size}", {"batch_size": size}) for size in (64, 128, 256)],
    f"kernel-stl10 {HCL_NOTES} one-seed",
    references=REFERENCES,
)

TABLE_8 = table(
    "mmcl",
    "table-8",
    "Variants of MMCL",
    Config(**HCL),
    [
        row("SimCLR", trained_with(SIMCLR)),
        *(
            row(
                f"MMCL_{solver}{ending}",
                {"pairs": pairs},
                f"{note} {pairs.replace('_', '-')}",
                published=f"MMCL_{solver}",
                in_columns=_rbf(**numbers),
            )
            for solver, ending, pairs, note, numbers in (
                ("PGD", "", "both_views", "pgd", PGD),
                ("PGD", ", first view", "first_view", "pgd", PGD),
                ("PGD", ", as in the program", "first_view", "program-pgd", PROGRAM_PGD),
                ("INV", "", "both_views", "inv", {}),
                ("INV", ", first view", "first_view", "inv", {}),
            )
        ),
    ],
    CIFAR100_AND_STL10,
    f"{KERNEL_NOTES} {HCL_NOTES} one-seed",
    references=REFERENCES,
)

# HCL, SimCLR and the closed form at smaller batches than in CIFAR-10's Table 2 of margins.
AGAINST_HCL = {"SimCLR": "SimCLR", "HCL": "HCL", "MMCL INV, both views": OURS}
TABLE_7_CIFAR10 = derived(
    margins.TABLE_2,
    ON,
    "CIFAR-10",
    [
        Column(
            f"batch{size}",
            {"dataset": "CIFAR10", "batch_size": size, "learning_rate": 0.06 * size / 256},
        )
        for size in (64, 128)
    ],
    "ressl-settings ressl-unlike other-losses batch-seeds feature-128 choice",
    short=ON_CIFAR10,
    rows=[
        dataclasses.replace(each, published=AGAINST_HCL[each.label])
        for each in margins.TABLE_2.rows
        if each.label in AGAINST_HCL
    ],
    paper="mmcl",
    name=f"table-7{ON}",
    section=TABLE_7.section,
    title="Accuracy against batch size: CIFAR-10 on one core",
    seeds={"short": tuple(range(6)), "smoke": (0,)},
    published=dataclasses.replace(
        TABLE_7.published, columns=(), rows={label: () for label in AGAINST_HCL.values()}
    ),
    references=(),
)

SLACKS = {"0.01": 0.01, "0.1": 0.1, "1": 1.0, "10": 10.0, "100": 100.0, "infinity": math.inf}

FIGURE_3A = table(
    "mmcl",
    "figure-3a",
    "The slack C",
    Config(**{**KNN, "epochs": 200, "pairs": "both_views"}),
    [
        row(f"C = {name}", {}, "variant inv both-views", in_columns=_rbf(cost=slack))
        for name, slack in SLACKS.items()
    ],
    CIFAR100_AND_STL10,
    f"slack-grid panel-b knn {KERNEL_NOTES} {HCL_NOTES} one-seed",
    of="Figure 3, panel a",
    printed="figure-3",
    metric=KNN_METRIC,
)

FIGURE_3C = table(
    "mmcl",
    "figure-3c",
    "Accuracy against epochs",
    Config(**KNN),
    [
        row("SimCLR", trained_with(SIMCLR)),
        row(
            "MMCL_PGD", _max_margin(gamma=STL10_GAMMA, **PGD, pairs="both_views"), "pgd both-views"
        ),
        row("MMCL_INV", INV_ON_STL10, "inv both-views"),
    ],
    [Column(f"{epochs} epochs", {**STL10, "epochs": epochs}) for epochs in (25, 50, 100, 200, 400)],
    f"epochs-grid knn-assumed knn kernel-stl10 {HCL_NOTES} one-seed",
    of="Figure 3, panel c",
    printed="figure-3",
    metric=KNN_METRIC,
)

# Reduced runs

LONGER_COLUMNS = [
    Column(
        f"{name}, {times * changes['epochs']} epochs",
        {**changes, **{field: times * changes[field] for field in ("epochs", "warmup_epochs")}},
    )
    for times in (2, 4)
    for name, changes in SMALL_SETS.items()
]


def _transferred(source: Table, protocol: str) -> Table:
    """A part of Table 1 from CIFAR-10."""
    rows = [
        each
        if each.published in TABLE_1_PRINTED.rows
        else dataclasses.replace(each, published=None)
        for each in smaller_rows(TABLE_3)
    ]
    columns = [
        Column(name, {**SMALL_SETS["CIFAR10"], "evaluate_on": name})
        for name in ("CIFAR100", "STL10", "imagenette")
    ]
    # Without a network nothing can be fine-tuned.
    untunable = Seeds((), rows=tuple(each.label for each in WITHOUT_NETWORK), tiers=("short",))
    return small(
        source,
        "transfer-small",
        columns,
        "from CIFAR-10",
        rows=rows,
        metric=source.metric,
        protocol=protocol,
        seeds={"short": (0,)},  # on embedded data it would be the smoke tier of ``source`` again
        seed_exceptions=(untunable,) if source is TABLE_1 else (),
        published=dataclasses.replace(
            TABLE_1_PRINTED, columns=(), rows={x.published: () for x in rows if x.published}
        ),
    )


MMCL: tuple[Table, ...] = (
    TABLE_1,
    TABLE_1_FEW_SHOT,
    TABLE_1_LINEAR,
    TABLE_2,
    TABLE_3,
    TABLE_6,
    TABLE_7,
    TABLE_8,
    TABLE_7_CIFAR10,
    LONGER_TRAINING,
    FIGURE_3A,
    FIGURE_3C,
    on_cifar10(
        FIGURE_3A,
        [Column("CIFAR10")],
        f"stl10-on-cifar10 kernel-stl10 {HCL_NOTES}",
        short=HCL_QUARTER,
        rows=[
            dataclasses.replace(each, in_columns={"CIFAR10": each.in_columns["stl10"]})
            for each in FIGURE_3A.rows
        ],
    ),
    on_cifar10(
        FIGURE_3C,
        [Column(f"{epochs} epochs", {"epochs": epochs}) for epochs in (1, 2, 5)],
        f"stl10-on-cifar10 kernel-stl10 {HCL_NOTES} epochs-chosen epochs-seeds",
        short=HCL_QUARTER,
        seeds={"short": tuple(range(6)), "smoke": (0,)},
    ),
    _transferred(TABLE_1, "fine-tuned-small-v1"),
    _transferred(TABLE_1_FEW_SHOT, "few-shot-5way-5shot-v1"),
    _transferred(TABLE_1_LINEAR, "many-shot-linear-small-v1"),
    small(TABLE_2),
    small(TABLE_3),
    small(LONGER_TRAINING, columns=LONGER_COLUMNS),
)
