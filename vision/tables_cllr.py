"""CLLR's vision tables as data."""

from typing import Any

from shared import Objective, Projection, Term
from shared.experiment.tables import Column, Row, Table, load_published
from vision.config import CMC, HCL, Config
from vision.tables_common import (
    CIFAR10,
    CMC_DCL,
    CMC_HARD,
    CMC_NOTES,
    CMC_TEXT,
    CMC_TWO,
    CO2,
    DCL,
    FEWER,
    FEWER_NOTE,
    HARD,
    HCL_NOTES,
    HCL_QUARTER,
    IMAGENET_100,
    IMAGENET_SEEDS,
    ONE_SEED,
    PUBLISHED,
    REFERENCES,
    SEEDS,
    SHORT,
    SHORT_NOTE,
    SIMCLR,
    STL10,
    SWAV,
    SWAV_LOSS,
    SWAV_TEXT,
    VARIES,
    by_batch_size,
    cost,
    small,
    swept,
)

FILE = PUBLISHED / "cllr.toml"
CO2_TEXT = (
    "Weight 1 and temperature 0.05 of the penalty are not printed: a public program's (lightly), "
    "whose softmaxes count the positive, too; here, as in CO2's paper, those are of negatives."
)

ALPHA = 10.0  # printed
OVER = ", norm over batch"
NORMS = (("l2,1", "l21"), ("nuclear", "nuclear"))


def _low_rank(
    loss: Term, norm: str, dimensions: int, *, alpha: float = ALPHA, **options: Any
) -> dict[str, Any]:
    # lambda = 0.1 is printed.
    projection = Projection(0.1, {"norm": norm, "alpha": alpha, **options})
    return {
        "objective": Objective(loss, projection=projection),
        "projection_dimensions": dimensions,
    }


HEAD = (
    "The dimensions are taken as those of the head's output, since a ResNet-50 has no feature of "
    "4096 or 512; the probe reads the backbone's 2048, as the authors' program does."
)
ON_BACKBONE = (
    "L (2048 x 2048, started as the identity) works on the backbone's unnormalised feature, where "
    "the authors' program has it; the paper does not say."
)
PRINTED_ALPHA = (
    "alpha = 10 as printed: of an untrained ResNet-50's 2048 directions (CIFAR-10) only the 2 "
    "strongest outweigh such a nuclear norm, and nothing keeps features from shrinking that a "
    "batch norm follows, so that L may lose all of them; a warning says when it has."
)
OVER_BATCH = (
    "The norm of L divided by the batch size (alpha = 10 / B), as the authors' program divides "
    "what it penalises: our reading, since the printed alpha may leave nothing of L."
)
NUCLEAR_NOTE = (
    "The nuclear norm takes the singular values of a 2048 x 2048 matrix at every step: 8 seconds "
    "on one CPU core, which the planned minutes leave out."
)
SHORT_FEATURE = (
    "In the short tier the feature has the 512 dimensions of a ResNet-18; L is as wide, and rows "
    "of 512 dimensions keep all of it."
)
SELECTED = {
    "l21": "The evaluated feature keeps the columns of largest norm.",
    "nuclear": "The evaluated feature keeps the largest singular values; the paper's footnote "
    "speaks of a maximal independent set of columns.",
}


def _table_1_rows() -> tuple[Row, ...]:
    without = tuple(
        Row(
            f"{dimensions}-dim (w/o R)",
            {"objective": Objective(SIMCLR), "head_output": dimensions},
            published=f"{dimensions}-dim (w/o R)",
            deviation=HEAD,
        )
        for dimensions in (4096, 3072, 2048, 512, 256)
    )
    without_norm = tuple(
        Row(
            f"{dimensions}-dim (w/o sparsity, alpha=0)",
            _low_rank(SIMCLR, "none", dimensions, alpha=0.0, rows=dimensions),
            published=f"{dimensions}-dim (w/o sparsity, alpha=0)",
            deviation=f"L has {dimensions} rows, as in the authors' program: a square one without "
            "a norm would stay the identity.",
        )
        for dimensions in (512, 256)
    )
    with_norm = tuple(
        Row(
            f"{dimensions}-dim (w/ {name}){suffix}",
            _low_rank(SIMCLR, norm, dimensions, alpha=alpha),
            published=f"{dimensions}-dim (w/ {name})",
            deviation=f"{ON_BACKBONE} {reason} {SELECTED[norm]}",
        )
        for suffix, alpha, reason in (
            ("", ALPHA, PRINTED_ALPHA),
            (OVER, ALPHA / 256, OVER_BATCH),
        )
        for name, norm in NORMS
        for dimensions in (512, 256)
    )
    authors = Row(
        "512-dim, authors' program",
        {
            **_low_rank(SIMCLR, "none", 512, alpha=0.0, form="authors", rows=512),
            "head_output": 1024,
        },
        deviation="No norm of L, both sides of the reconstruction normalised, head of 1024. "
        "Otherwise this table's protocol: the program has batches of 1024, 500 epochs and a probe "
        "on the backbone's feature, here on L's.",
    )
    return (*without, *without_norm, *with_norm, authors)


TABLE_1_COLUMNS = tuple(
    Column(
        f"{name}_ep{epochs}",
        {**changes, "epochs": epochs},
        *cost(changes["dataset"], epochs, 256),
    )
    for name, changes in (("stl10", STL10), ("cifar10", CIFAR10))
    for epochs in (100, 400)
)


TABLE_1 = Table(
    domain="vision",
    paper="cllr",
    name="table-1",
    title="High- and low-dimensional embeddings, STL-10 and CIFAR-10",
    section="Chen et al. 2022 (CLLR), Table 1",
    metric="linear_top1",
    unit="%",
    protocol="linear-adam-v1",
    config=Config(**HCL),
    rows=_table_1_rows(),
    columns=TABLE_1_COLUMNS,
    seeds={"paper": (0, 1, 2, 3, 4), "short": (0,), "smoke": (0,)},
    published=load_published(FILE, "table-1"),
    short=FEWER,
    varies=VARIES,
    references=REFERENCES,
    notes=(
        "The row labels of the printed table are a reconstruction, of low confidence: see its "
        "warnings.",
        "256 negatives are read as batches of 256.",
        NUCLEAR_NOTE,
        *HCL_NOTES,
        FEWER_NOTE,
        SHORT_FEATURE,
    ),
)

CLLR_ON_IMAGENET = (
    f"{ON_BACKBONE} 256 dimensions are evaluated. Numbers of HCL as in its row; alpha = 10 as "
    "printed."
)

TABLE_3 = Table(
    domain="vision",
    paper="cllr",
    name="table-3",
    title="ImageNet-100, CMC's framework",
    section="Chen et al. 2022 (CLLR), Table 3",
    metric="linear_top1",
    unit="%",
    protocol="linear-cmc-v1",
    config=Config(**CMC),
    rows=(
        Row("CMC", CMC_TWO, published="CMC", deviation=CMC_TEXT),
        Row("SwAV", SWAV, published="SwAV", deviation=SWAV_TEXT),
        Row(
            "DCL",
            {"objective": Objective(CMC_DCL)},
            published="DCL",
            deviation="tau+ = 0.01 and temperature 0.07 are not printed.",
        ),
        Row(
            "HCL",
            {"objective": Objective(CMC_HARD)},
            published="HCL",
            deviation="tau+ = 0.01, beta = 1 and temperature 0.07 are not printed.",
        ),
        Row(
            "CO2",
            {"objective": Objective(CMC["objective"].loss, (CO2,))},
            published="CO2",
            deviation=f"On MoCo, as in its paper. {CO2_TEXT}",
        ),
        *(
            Row(
                f"CLLR(CMC+{name}-norm)",
                {**CMC_TWO, **_low_rank(CMC["objective"].loss, norm, 256)},
                published=f"CLLR(CMC+{name}-norm)",
                deviation="As the row CMC; L works on the features of both networks together, "
                f"once in each direction. {ON_BACKBONE}",
            )
            for name, norm in NORMS
        ),
        *(
            Row(
                f"CLLR(HCL+{name}-norm)",
                _low_rank(CMC_HARD, norm, 256),
                published=f"CLLR(HCL+{name}-norm)",
                deviation=CLLR_ON_IMAGENET,
            )
            for name, norm in NORMS
        ),
        Row("MoCo", deviation="Printed by no paper: InfoNCE in the framework of these rows."),
        *(
            Row(
                f"CLLR(SwAV+{name}-norm)",
                {**SWAV, **_low_rank(SWAV_LOSS, norm, 256)},
                deviation=f"Printed by no paper: L on the features of SwAV's large crops. "
                f"{ON_BACKBONE}",
            )
            for name, norm in NORMS
        ),
        *(
            Row(
                f"CLLR(MoCo+{name}-norm)",
                _low_rank(CMC["objective"].loss, norm, 256),
                deviation=ON_BACKBONE,
            )
            for name, norm in NORMS
        ),
    ),
    columns=IMAGENET_100,
    seeds=IMAGENET_SEEDS,
    published=load_published(FILE, "table-3"),
    varies=VARIES,
    notes=(*CMC_NOTES, NUCLEAR_NOTE, ONE_SEED),
)

TABLE_3_SMALL = small(TABLE_3)

FIGURE_4_COLUMNS = by_batch_size(epochs=100)
FIGURE_4_NOTES = (
    "The axis, 'negative sample size', is read as the batch size B; it may also be the number of "
    "negatives, 2B - 2.",
)


def _figure_4_variants(loss: Term, base: str) -> tuple[Row, ...]:
    printed = tuple(
        Row(
            f"CLLR({base}+{name}-norm)",
            _low_rank(loss, norm, 256),
            deviation=f"{ON_BACKBONE} {PRINTED_ALPHA} {SELECTED[norm]}",
        )
        for name, norm in NORMS
    )
    over_batch = tuple(
        Row(
            f"CLLR({base}+{name}-norm){OVER}",
            deviation=f"{ON_BACKBONE} {OVER_BATCH} {SELECTED[norm]}",
            in_columns={
                column.label: _low_rank(loss, norm, 256, alpha=ALPHA / column.changes["batch_size"])
                for column in FIGURE_4_COLUMNS
            },
        )
        for name, norm in NORMS
    )
    return printed + over_batch


FIGURE_4 = Table(
    domain="vision",
    paper="cllr",
    name="figure-4",
    title="STL-10 and CIFAR-10, accuracy against batch size",
    section="Chen et al. 2022 (CLLR), Figure 4",
    metric="linear_top1",
    unit="%",
    protocol="linear-adam-v1",
    config=Config(**{**HCL, "epochs": 100}),
    rows=(
        Row(
            "SimCLR",
            {"objective": Objective(SIMCLR)},
            deviation="The text calls its baseline CMC/SimCLR; CMC's two networks are left out.",
        ),
        Row(
            "SwAV",
            {
                "method": "swav",
                "objective": Objective(SWAV_LOSS),
                "augmentations": ("swav", "swav"),
                "small_crops": 6,
                "small_size": 16,
                "prototypes": 300,
                "prototypes_still": 1.0,
                "queue": 1024,
                "queue_from": 1.0,
            },
            deviation="Nothing of it is printed. Its program's crops, scaled to 2 of 32 and 6 of "
            "16 pixels, temperature and epsilon; ours: 300 prototypes and a queue of 1024 for ten "
            "classes; head and optimiser are this table's.",
        ),
        Row("DCL", {"objective": Objective(DCL)}),
        Row("HCL", {"objective": Objective(HARD)}),
        Row(
            "CO2",
            {"objective": Objective(SIMCLR, (CO2,))},
            deviation="CO2's paper has it on MoCo; here on SimCLR, as the figure's other rows. "
            f"{CO2_TEXT}",
        ),
        *_figure_4_variants(SIMCLR, "SimCLR"),
        *_figure_4_variants(HARD, "HCL"),
    ),
    columns=FIGURE_4_COLUMNS,
    seeds=SEEDS,
    published=load_published(FILE, "figure-4"),
    short=SHORT,
    varies=VARIES,
    notes=(
        *FIGURE_4_NOTES,
        "The figure's methods are those that the text names; 256 dimensions are evaluated.",
        NUCLEAR_NOTE,
        *HCL_NOTES,
        ONE_SEED,
        SHORT_NOTE,
        SHORT_FEATURE,
    ),
)

FIGURE_4_ON_CIFAR10 = swept(
    FIGURE_4,
    {each.label: each for each in FIGURE_4_COLUMNS if each.changes["dataset"] == "CIFAR10"},
    budget=HCL_QUARTER,
    notes=(
        *FIGURE_4_NOTES,
        *HCL_NOTES,
        "The encoder's feature has 128 dimensions: L is 128 x 128, and all of it is kept.",
    ),
)

CLLR: tuple[Table, ...] = (TABLE_1, TABLE_3, FIGURE_4, FIGURE_4_ON_CIFAR10, TABLE_3_SMALL)
