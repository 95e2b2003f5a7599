"""CLLR's vision tables as data."""

from typing import Any

from shared import Objective, Term
from shared.experiment.methods import ALPHA, NORMS, OVER_BATCH, low_rank, trained_with
from shared.experiment.tables import Column, Row, Table
from vision.config import CMC, HCL, Config
from vision.tables_common import (
    BY_BATCH_SIZE,
    CIFAR10,
    CMC_HARD,
    CMC_NCE,
    CMC_NOTES,
    CMC_ROWS,
    CMC_TWO,
    CO2,
    DCL,
    HARD,
    HCL_NOTES,
    HCL_QUARTER,
    IMAGENET_100,
    REFERENCES,
    SIMCLR,
    STL10,
    SWAV,
    SWAV_LOSS,
    on_cifar10,
    row,
    small,
    table,
)

PRINTED = {"l21": "l2,1", "nuclear": "nuclear"}  # the names of the norms


def _low_rank(
    loss: Term, norm: str, dimensions: int = 256, *, alpha: float = ALPHA, **options: Any
) -> dict[str, Any]:
    projection = low_rank(norm, alpha, **options)
    return trained_with(loss, projection=projection, projection_dimensions=dimensions)


TABLE_1 = table(
    "cllr",
    "table-1",
    "High- and low-dimensional embeddings, STL-10 and CIFAR-10",
    Config(**HCL),
    [
        *(
            row(f"{size}-dim (w/o R)", trained_with(SIMCLR, head_output=size), "head-dimensions")
            for size in (4096, 3072, 2048, 512, 256)
        ),
        *(
            row(
                f"{size}-dim (w/o sparsity, alpha=0)",
                _low_rank(SIMCLR, "none", size, alpha=0.0, rows=size),
                "authors-rows",
            )
            for size in (512, 256)
        ),
        *(
            row(
                f"{size}-dim (w/ {PRINTED[norm]}){ending}",
                _low_rank(SIMCLR, norm, size, alpha=alpha),
                f"on-backbone {note} select-{norm}",
                published=f"{size}-dim (w/ {PRINTED[norm]})",
            )
            for ending, alpha, note in (
                ("", ALPHA, "printed-alpha"),
                (OVER_BATCH, ALPHA / 256, "alpha-over-batch"),
            )
            for norm in NORMS
            for size in (512, 256)
        ),
        row(
            "512-dim, authors' program",
            {
                **_low_rank(SIMCLR, "none", 512, alpha=0.0, form="authors", rows=512),
                "head_output": 1024,
            },
            "authors-cllr",
        ),
    ],
    [
        Column(f"{name}_ep{epochs}", {**changes, "epochs": epochs})
        for name, changes in (("stl10", STL10), ("cifar10", CIFAR10))
        for epochs in (100, 400)
    ],
    f"low-confidence negatives-256 nuclear-cost {HCL_NOTES}",
    seeds={"paper": (0, 1, 2, 3, 4), "smoke": (0,)},
    references=REFERENCES,
)

TABLE_3 = table(
    "cllr",
    "table-3",
    "ImageNet-100, CMC's framework",
    Config(**CMC),
    [
        *CMC_ROWS,
        row("CO2", trained_with(CMC_NCE, CO2), "co2-moco co2-numbers"),
        *(
            row(f"CLLR({base}+{PRINTED[norm]}-norm)", {**framework, **_low_rank(loss, norm)}, notes)
            for base, framework, loss, notes in (
                ("CMC", CMC_TWO, CMC_NCE, "cmc-low-rank on-backbone cmc-diverges"),
                ("HCL", {}, CMC_HARD, "on-backbone hcl-and-alpha cmc-diverges"),
            )
            for norm in NORMS
        ),
        row("MoCo", {}, "moco"),
        *(
            row(f"CLLR({base}+{PRINTED[norm]}-norm)", {**framework, **_low_rank(loss, norm)}, notes)
            for base, framework, loss, notes in (
                ("SwAV", SWAV, SWAV_LOSS, "swav-low-rank on-backbone"),
                ("MoCo", {}, CMC_NCE, "on-backbone cmc-diverges"),
            )
            for norm in NORMS
        ),
    ],
    IMAGENET_100,
    f"{CMC_NOTES} nuclear-cost one-seed",
)


def _figure_4_variants(loss: Term, base: str) -> tuple[Row, ...]:
    return (
        *(
            row(
                f"CLLR({base}+{PRINTED[norm]}-norm)",
                _low_rank(loss, norm),
                f"on-backbone printed-alpha select-{norm}",
            )
            for norm in NORMS
        ),
        *(
            row(
                f"CLLR({base}+{PRINTED[norm]}-norm){OVER_BATCH}",
                {},
                f"on-backbone alpha-over-batch select-{norm}",
                in_columns={
                    column.label: _low_rank(loss, norm, alpha=ALPHA / column.changes["batch_size"])
                    for column in BY_BATCH_SIZE
                },
            )
            for norm in NORMS
        ),
    )


SWAV_ON_CIFAR: dict[str, Any] = {
    "method": "swav",
    "objective": Objective(SWAV_LOSS),
    "augmentations": ("swav", "swav"),
    "small_crops": 6,
    "small_size": 16,
    "prototypes": 300,
    "prototypes_still": 1.0,
    "queue": 1024,
    "queue_from": 1.0,
}

FIGURE_4 = table(
    "cllr",
    "figure-4",
    "STL-10 and CIFAR-10, accuracy against batch size",
    Config(**{**HCL, "epochs": 100}),
    [
        row("SimCLR", trained_with(SIMCLR), "simclr-base"),
        row("SwAV", SWAV_ON_CIFAR, "swav-cifar"),
        row("DCL", trained_with(DCL)),
        row("HCL", trained_with(HARD)),
        row("CO2", trained_with(SIMCLR, CO2), "co2-simclr co2-numbers"),
        *_figure_4_variants(SIMCLR, "SimCLR"),
        *_figure_4_variants(HARD, "HCL"),
    ],
    BY_BATCH_SIZE,
    f"batch-size-axis methods-in-text nuclear-cost {HCL_NOTES} one-seed",
)

CLLR: tuple[Table, ...] = (
    TABLE_1,
    TABLE_3,
    FIGURE_4,
    on_cifar10(
        FIGURE_4, BY_BATCH_SIZE[5:], f"batch-size-axis {HCL_NOTES} feature-128", short=HCL_QUARTER
    ),
    small(TABLE_3, "feature-128"),
)
