"""MMCL's video table as data, with the other papers' objectives in rows of our own.

CoCLR is Han et al. 2020 and its program; what MMCL leaves out is as there: see video.config. The
table stands in the paper's setting, and at a budget that one core can pay with a network made for
small clips (``table-5-small``). A first such tier, of S3D, could not tell trained from untrained
encoders; its five records are kept in a table of their own, on which no outcome rests.
"""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from shared import (
    Objective,
    Projection,
    Term,
    debiased_nce,
    distance_polarization,
    hard_nce,
    info_nce,
    margin_nce,
    max_margin,
    term,
)
from shared.experiment.claims import with_claims
from shared.experiment.tables import (
    Column,
    Row,
    Seeds,
    Table,
    load_published,
)
from video.config import Config

PUBLISHED = Path(__file__).parent / "published"

# As in DCL's and HCL's programs for images; ours for video, fixed before any run.
TAU_PLUS = 0.1
BETA = 1.0
ALPHA = 10.0  # printed by Chen et al. 2022

# What the first short tier changed, as its records have it.
CLOSED: dict[str, Any] = {
    "width": 0.25,
    "head_hidden": 256,
    "clip_frames": 16,
    "size": 48,
    "sampling": "two_clips",
    "batch_size": 64,
    "epochs": 12,
    "milestones": (9, 11),
    "probe_epochs": 100,
    "probe_views": 4,
}

# What the short tier changes: chosen on SimCLR alone, on seeds of no table, and kept for all rows.
SMALL: dict[str, Any] = {
    "network": "r2plus1d",
    "width": 0.25,
    "strides": (2, 1, 2, 2, 2),
    "head_hidden": 128,
    "head_batch_norm": True,
    "clip_frames": 8,
    "size": 32,
    "sampling": "two_clips",
    "policy": "strong",
    "flow": "dis",
    "teacher_momentum": 0.99,
    "batch_size": 64,
    "epochs": 40,
    "schedule": "cosine",
    "milestones": (),
    "optimiser": "adamw",
    "learning_rate": 2e-3,
    "weight_decay": 0.01,
    "windows": 10,
    "probe_views": 4,
}
SMALL_TEMPERATURE = 0.1
SMALL_CONFIG = dataclasses.replace(
    Config(), objective=Objective(term(info_nce, temperature=SMALL_TEMPERATURE)), **SMALL
)
# Of a trained cell: measured on one CPU core.
SMALL_MINUTES, SMALL_GIGABYTES = 10.0, 1.5

# One clip of 32 x 128 x 128 forward and back in float32, of which forward is a third, and what it
# leaves in memory: measured on one CPU core. The rest is counted on nine classes.
SECONDS = 1.6
GIGABYTES = 0.45
VIDEOS, TEST_VIDEOS, WINDOWS = 819, 306, 5


def _minutes(config: Config) -> float:
    """Of a cell of a row that trains on both clips; MoCo's has a gradient through one."""
    pretraining = config.epochs * (VIDEOS // config.batch_size) * 2 * config.batch_size
    probe = config.probe_epochs * VIDEOS + 10 * WINDOWS * TEST_VIDEOS
    retrieval = WINDOWS * (VIDEOS + TEST_VIDEOS)
    return round(SECONDS * (pretraining + (probe + retrieval) / 3) / 60, -2)


def _columns(minutes: float, gigabytes: float) -> tuple[Column, ...]:
    return tuple(
        Column(
            f"{modality} {label}",
            {"modality": modality.lower()},
            minutes=minutes,
            gigabytes=gigabytes,
            metric=metric,
            run=modality,
        )
        for modality in ("RGB", "Flow")
        for label, metric in (("linear", "top1"), ("R@1", "R@1"))
    )


COLUMNS = _columns(_minutes(Config()), 1.0 + 2 * Config().batch_size * GIGABYTES)
LABELS = tuple(column.label for column in COLUMNS)


def _in_batch(
    loss: Term,
    *penalties: Term,
    projection: Projection | None = None,
    pairs: str = "both",
) -> dict[str, Any]:
    objective = Objective(loss, penalties, projection)
    return {"method": "simclr", "pairs": pairs, "objective": objective}


def _max_margin(pairs: str, **numbers: Any) -> dict[str, Any]:
    # C = 100 and the ridge of 0.1 are printed; sigma^2 = 1 is ours.
    return _in_batch(term(max_margin, gamma=0.5, cost=100.0, ridge=0.1, **numbers), pairs=pairs)


OURS = "Printed by no paper for video"
KERNEL = (
    "Solver and kernel width are not printed for video: sigma^2 = 1 here, which is gamma = 0.5 by "
    "the printed formula, as MMCL has it for STL-10."
)
SELECTED = {
    "l21": "The evaluated feature keeps the 256 columns of largest norm.",
    "nuclear": "The evaluated feature keeps the 256 largest singular values; the paper's footnote "
    "speaks of a maximal independent set of columns.",
}

UNTRAINED = (
    f"{OURS}; what pretraining adds is measured from here. Its batch norms have seen nothing and "
    "pass everything on, so that the network is nearly linear."
)
FLOOR = (
    "A feature without training, of the same clips by the same protocol: a trained row below it "
    "has learned less than can be seen without learning."
)
FLOORS = (
    Row(
        "8 x 8 thumbnail",
        {"network": "thumbnail", "train": False},
        deviation=f"{OURS}. {FLOOR} The mean of a clip's frames in 8 x 8 pixels.",
        baseline=True,
    ),
    Row(
        "colour histogram",
        {"network": "colours", "train": False},
        deviation=f"{OURS}. {FLOOR} All pixels of a clip in 6 x 6 x 6 bins; of flow, 6 x 6 are "
        "used.",
        baseline=True,
    ),
    Row("untrained encoder", {"train": False}, deviation=UNTRAINED, baseline=True),
    Row(
        "untrained encoder, calibrated",
        {"train": False, "calibrate": True},
        deviation=f"{OURS}. {FLOOR} The untrained encoder, whose batch norms have the statistics "
        "of one epoch of augmented clips.",
        baseline=True,
    ),
)


def _rows(base: Config, moco: Sequence[Row]) -> tuple[Row, ...]:
    """MoCo's rows, and those that work within a batch, at the temperature of ``base``."""
    nce, batch = base.objective.loss, base.batch_size
    temperature = nce.numbers["temperature"]
    printed = " as printed" if batch == 128 else ""
    whose = "CoCLR's" if temperature == 0.07 else "the tier's"
    features = round(1024 * base.width) if base.network == "s3d" else round(512 * base.width)
    in_batch = (
        "Two clips of each video of a batch, one encoder, no queue, as in the rows of MMCL; "
        f"{whose} temperature of {temperature:g}."
    )
    return (
        *moco,
        Row("SimCLR", _in_batch(nce), deviation=f"{OURS}: NT-Xent. {in_batch}"),
        Row(
            "MMCL INV, both views",
            _max_margin("both_views"),
            published="MMCL",
            deviation=f"{KERNEL} Closed form; {2 * batch - 2} negatives{printed}, 2B - 2 of both "
            "views.",
        ),
        Row(
            "MMCL INV, first view",
            _max_margin("first_view"),
            published="MMCL",
            deviation=f"{KERNEL} Closed form; {batch - 1} negatives, B - 1 of the first view "
            "alone, as in the authors' program for images, where the table prints 254.",
        ),
        Row(
            "MMCL PGD, both views",
            _max_margin("both_views", solver="projected_gradient"),
            published="MMCL",
            deviation=f"{KERNEL} Projected gradient: 50 steps of 1 / lambda_max with momentum, "
            f"from the closed form; {2 * batch - 2} negatives.",
        ),
        Row(
            "DCL",
            _in_batch(term(debiased_nce, temperature=temperature, tau_plus=TAU_PLUS)),
            deviation=f"{OURS}: tau+ = {TAU_PLUS:g} of images. {in_batch}",
        ),
        Row(
            "HCL",
            _in_batch(term(hard_nce, temperature=temperature, tau_plus=TAU_PLUS, beta=BETA)),
            deviation=f"{OURS}: tau+ = {TAU_PLUS:g} and beta = {BETA:g} of images. {in_batch}",
        ),
        Row(
            "LMCL(SimCLR+DP)",
            _in_batch(nce, term(distance_polarization, weight=0.1, lower=0.1, upper=0.5)),
            deviation=f"{OURS}: lambda = 0.1, delta+ = 0.1 and delta- = 0.5 as printed elsewhere, "
            "the penalty added over the pairs of an anchor, then the mean over anchors. "
            f"{in_batch}",
        ),
        *(
            Row(
                f"CLLR(SimCLR+{name}), norm over batch",
                _in_batch(nce, projection=Projection(0.1, {"norm": norm, "alpha": ALPHA / batch})),
                deviation=f"{OURS}: L is {features} x {features}, started as the identity, on the "
                f"pooled feature; its norm is divided by the batch size (alpha = 10 / {batch}), as "
                "the authors' program for images divides what it penalises. "
                f"{_selected(norm, features)} {in_batch}",
            )
            for name, norm in (("l21-norm", "l21"), ("nuclear-norm", "nuclear"))
        ),
        Row(
            "margins",
            _in_batch(term(margin_nce, temperature=temperature, angular=0.5, subtractive=0.4)),
            deviation=f"{OURS}: m1 and m2 of SimCLR on CIFAR-10 (margins, Table 5). {in_batch}",
        ),
    )


def _selected(norm: str, features: int) -> str:
    kept = Config().projection_dimensions
    return SELECTED[norm] if features > kept else f"The evaluated feature keeps all {features}."


MOCO = (
    "The printed numbers are those of CoCLR's InfoNCE: linear on RGB after 500 epochs (300 + 200), "
    "R@1 from the checkpoints of epochs 399 (RGB) and 396 (flow). After 800 epochs the same "
    "baseline gives 52.3 in place of 46.8."
)
ROWS = (
    *FLOORS,
    *_rows(
        Config(),
        (
            Row(
                "MoCo-v2",
                published="MoCo-v2",
                deviation=f"{MOCO} Here: 300 epochs, as of MMCL, in its batches of 128.",
            ),
            Row(
                "MoCo-v2, batch 64",
                {"batch_size": 64},
                published="MoCo-v2",
                deviation="As MoCo-v2, in the batches of CoCLR's program, which make twice as many "
                "steps.",
            ),
        ),
    ),
)
SMALL_ROWS = (
    *FLOORS,
    *_rows(
        SMALL_CONFIG,
        (
            Row(
                "MoCo-v2",
                published="MoCo-v2",
                deviation=f"{MOCO} Here: a teacher that keeps 0.99 of itself in each step, not "
                "0.999, which would leave three fifths of its start in it after 480 steps; the "
                f"tier's temperature of {SMALL_TEMPERATURE:g}.",
            ),
        ),
    ),
)


# Rows of no claim have one seed less.
OF_CLAIMS = (
    "MoCo-v2",
    "MMCL INV, both views",
    "MMCL INV, first view",
    "MMCL PGD, both views",
)


SET = (
    "Runs use the classes that are present, and each records how many. The suite's own data has "
    "nine of 101, 819 training and 306 test videos of split 1, re-encoded to 128 x 96 at half the "
    "frame rate: outcomes on nine classes of reduced clips are about that set. Numbers cannot be "
    "held against the printed ones, which are of 101 classes."
)
PROGRAM = (
    "CoCLR's program keeps the probe's best epoch by random crops of a part of the test list, or "
    "prints the best accuracy on all of it; jitters colours at test; and centres test features by "
    "their own mean. None of it here: the last epoch counts, crops at test are fixed, and test and "
    "training features are centred by the training mean."
)
QUEUE = (
    "The queue keeps 256 keys of the 819 training videos in place of the printed 2048, which would "
    "hold two or three of every query's own video."
)
SIBLINGS = (
    "UCF-101 cuts several clips from one recording, a group. Siblings are negatives of each other "
    "in every batch and queue; the split keeps groups apart, so that no test video has a sibling "
    "in training."
)
FIXED = (
    "tau+, beta, margins and the kernel's width were fixed before any run; no video program of "
    "MMCL, DCL, HCL, LMCL, CLLR or margins is public."
)

READ_OUTS = (
    "The probe's outcome depends on its schedule. Beside it stands a ridge regression to the "
    "classes on the features of retrieval, standardised, which has none. Seeds were declared "
    "before the first run, and are not added for what an outcome says."
)
VARIES = (
    "seed (initialisation, clips and their augmentation, order of batches); the split is the same "
    "for every seed"
)
TABLE_5 = Table(
    domain="video",
    paper="mmcl",
    name="table-5",
    title="UCF-101 without labels, S3D on RGB and on optical flow",
    section="Shah et al. 2022 (MMCL), Table 5",
    metric="top1",
    unit="%",
    protocol="coclr-linear-retrieval-v2",
    config=Config(),
    rows=ROWS,
    columns=COLUMNS,
    seeds={"paper": (0, 1, 2), "smoke": (0,)},
    published=load_published(PUBLISHED / "mmcl.toml", "table-5"),
    varies=VARIES,
    references=(load_published(PUBLISHED / "references.toml", "coclr"),),
    notes=(
        SET,
        "Everything the paper leaves out is as in CoCLR (Han et al. 2020) and its program: clips "
        "of 32 consecutive frames of 128 x 128, their augmentation, Adam at 1e-3, head "
        "1024-1024-128, TV-L1 flow, retrieval by pooled features.",
        "The printed gains compare a baseline quoted from CoCLR, pretrained for other numbers of "
        "epochs, with 300 epochs of MMCL; here every row has the same 300.",
        PROGRAM,
        QUEUE,
        SIBLINGS,
        "S3D's batch norms have CoCLR's momentum of 0.1 and epsilon of 1e-5, where the original's "
        "are 0.001 both. In pretraining both clips of a batch pass in one, so that a clip is not "
        "normalised by the same videos as its positive; MoCo's pass in two groups, keys shuffled, "
        "as on CoCLR's two devices. The probe leaves the encoder's in eval mode.",
        f"Temperature, {FIXED}",
        READ_OUTS,
        "One number is printed for each cell, with neither deviation nor number of runs; three "
        "seeds here.",
        "An interval is over seeds on the same test videos: of others it says nothing. One "
        "accuracy is known to 5 to 6 points on 306 test videos (half of its 95% Wilson interval) "
        "and to 1.6 on all 3,783.",
    ),
    also=("ridge", "R@5", "R@10", "R@20", "top1_low", "top1_high"),
)

TABLE_5_SMALL = dataclasses.replace(
    TABLE_5,
    name="table-5-small",
    title="UCF-101 without labels, a small R(2+1)D on RGB and on approximate (DIS) optical flow",
    config=SMALL_CONFIG,
    rows=SMALL_ROWS,
    columns=_columns(SMALL_MINUTES, SMALL_GIGABYTES),
    seeds={"short": (0, 1, 2, 3), "smoke": (0,)},
    fewer=(
        Seeds(
            (0, 1, 2),
            rows=tuple(row.label for row in SMALL_ROWS if row.label not in OF_CLAIMS),
            tiers=("short",),
        ),
    ),
    short=SMALL,
    notes=(
        SET,
        "The printed rows are of S3D, of clips of 32 x 128 x 128, of 300 epochs and of TV-L1 flow. "
        "S3D's strides leave nothing of a small clip: here R(2+1)D of a quarter of the channels, "
        "one block a stage, sees 8 x 32 x 32. Flow is DIS, an approximation a hundred times as "
        "fast (correlation with TV-L1 0.85, half a pixel off): numbers on it are of approximate "
        "flow, and TV-L1 stays with the paper tier.",
        "Network, augmentation, temperature (0.1), batch, rate and schedule were chosen on SimCLR "
        "on RGB, on seeds of no table, and kept for every row; no other row was tried with "
        "other numbers. AdamW's weight decay is its default. MoCo keeps CoCLR's two groups of "
        "batch norms, the head's, too.",
        READ_OUTS,
        "All rows share 306 test videos. Beside the interval over seeds stands McNemar's exact "
        "test for each seed, over videos that one row has right and the other wrong. It "
        "takes videos as independent, which siblings are not: 63 groups make up the 306.",
        "Every video is seen through ten windows, evenly spread; the probe reads four random crops "
        "of each training video, encoded once. Batches of 64 leave MMCL 126 negatives of both "
        "views and 63 of the first. MoCo-v2 in batches of 64, a row of its own in the paper tier, "
        "is MoCo-v2 here.",
        PROGRAM,
        QUEUE,
        SIBLINGS,
        f"Beside these, {FIXED}",
    ),
    also=("ridge", "R@5", "R@10", "R@20"),
)


# The first short tier. Its address is the paper tier's, and where its records lie.
TABLE_5_CLOSED = dataclasses.replace(
    TABLE_5,
    title="UCF-101 without labels, a narrow S3D on RGB: an earlier setting, closed",
    protocol="coclr-linear-retrieval-v1",
    config=dataclasses.replace(Config(), protocol="coclr-linear-retrieval-v1"),
    rows=tuple(
        row
        for row in ROWS
        if row.label
        in (
            "untrained encoder",
            "MoCo-v2",
            "SimCLR",
            "MMCL INV, both views",
            "MMCL PGD, both views",
        )
    ),
    columns=COLUMNS[:2],
    seeds={"short": (0,)},
    published=TABLE_5.published.part(LABELS[:2]),
    short=CLOSED,
    references=(),
    notes=(
        "Closed after one seed of five rows, which says nothing about any of them: MoCo lies "
        "below the untrained network, and all of them lie below the R@1 of 58 to 60 that an "
        "8 x 8 thumbnail of the same videos has. Claims are judged in the paper tier and in "
        "table-5-small, which took this tier's place.",
        SET,
        PROGRAM,
        QUEUE,
        "S3D of a quarter of the channels on clips of 16 x 48 x 48, always two of a video, for 12 "
        "epochs in batches of 64, which leave MMCL 126 negatives of both views. The probe reads "
        "four random crops of each training video, encoded once. The first version of the "
        "protocol averages raw features of windows, where CoCLR's program divides each by its "
        "length first.",
    ),
    also=("R@5", "R@10", "R@20", "top1_low", "top1_high"),
)

TABLES = with_claims({"mmcl": (TABLE_5, TABLE_5_SMALL, TABLE_5_CLOSED)}, PUBLISHED / "claims.toml")
