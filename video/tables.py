"""MMCL's video table as data, with the other papers' objectives in additional rows.

CoCLR is Han et al. 2020 and its program, which is followed where MMCL leaves something out: see
video.config. The table is declared at paper scale, and at a budget of one CPU core with a network
for small clips (``table-5-small``). A first reduced setting, of S3D, could not tell trained from
untrained encoders; its five records are kept in a closed table, which no claim uses. The prose is
in ``published/notes.toml``.
"""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shared import Objective, Term, term
from shared.experiment.methods import (
    ALPHA,
    NORMS,
    OVER_BATCH,
    low_rank,
    polarization,
    svm_margin,
    trained_with,
)
from shared.experiment.published import load_notes, load_published, with_claims
from shared.experiment.tables import Column, Row, Seeds, Table
from shared.lazy import debiased_nce, hard_nce, info_nce, margin_nce
from video.config import Config

PUBLISHED = Path(__file__).parent / "published"
NOTES = load_notes(PUBLISHED / "notes.toml")

# From DCL's and HCL's programs for images; neither is printed for video.
TAU_PLUS = 0.1
BETA = 1.0

# Changes of the first reduced setting, as in its records.
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

# Changes of the reduced scale: chosen on SimCLR alone, on seeds that no table uses, and kept for
# all rows.
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
SMALL_CONFIG = dataclasses.replace(
    Config(), objective=Objective(term(info_nce, temperature=0.1)), **SMALL
)


def _columns() -> tuple[Column, ...]:
    """Two metrics of each of two runs."""
    return tuple(
        Column(
            f"{modality} {label}",
            {"modality": modality.lower()},
            metric=metric,
            run=modality,
        )
        for modality in ("RGB", "Flow")
        for label, metric in (("linear", "top1"), ("R@1", "R@1"))
    )


def _in_batch(loss: Term, *penalties: Term, **others: Any) -> dict[str, Any]:
    return trained_with(loss, *penalties, **{"method": "simclr", "pairs": "both", **others})


def _trivial(
    label: str, changes: Mapping[str, Any], deviation: str, *, untrained: bool = False
) -> Row:
    deviation = f"{NOTES['additional']}{deviation}"
    changes = {**changes, "train": False}
    return Row(label, changes, deviation=deviation, baseline=True, untrained=untrained)


TRIVIAL = (
    _trivial(
        "8 x 8 thumbnail",
        {"network": "thumbnail"},
        f". {NOTES['trivial-baseline']} The mean of a clip's frames in 8 x 8 pixels.",
    ),
    _trivial(
        "colour histogram",
        {"network": "colours"},
        f". {NOTES['trivial-baseline']} All pixels of a clip in 6 x 6 x 6 bins; flow uses 6 x 6.",
    ),
    _trivial("untrained encoder", {}, f"; {NOTES['untrained']}", untrained=True),
    _trivial(
        "untrained encoder, calibrated",
        {"calibrate": True},
        f". {NOTES['trivial-baseline']} The untrained encoder, whose batch norms have the "
        "statistics of one epoch of augmented clips.",
    ),
)


def _rows(base: Config, *moco: Row) -> tuple[Row, ...]:
    """All rows: those of MoCo, and those with in-batch negatives at ``base``'s temperature."""
    nce, batch = base.objective.loss, base.batch_size
    temperature = nce.kwargs["temperature"]
    features = round((1024 if base.network == "s3d" else 512) * base.width)
    numbers = {
        "whose": "CoCLR's" if temperature == 0.07 else "the reduced scale's",
        "temperature": temperature,
        "features": features,
        "batch": batch,
        "both": 2 * batch - 2,
        "first": batch - 1,
        "printed": " as printed" if batch == 128 else "",
    }

    def said(*names: str) -> str:
        return " ".join(NOTES[name].format(**numbers) for name in names)

    def additional(label: str, changes: Mapping[str, Any], about: str) -> Row:
        return Row(label, changes, deviation=f"{said('additional')}: {about} {said('in-batch')}")

    def cllr(norm: str) -> Row:
        selected = f"selected-{norm if features > base.projection_dimensions else 'all'}"
        return additional(
            f"CLLR(SimCLR+{norm}-norm){OVER_BATCH}",
            _in_batch(nce, projection=low_rank(norm, ALPHA / batch)),
            said("low-rank", selected),
        )

    def mmcl(name: str, view: str, **numbers: Any) -> Row:
        return Row(
            f"MMCL {name}, {view.replace('_', ' ')}",
            _in_batch(svm_margin(gamma=0.5, **numbers), pairs=view),  # sigma^2 = 1 is assumed
            "MMCL",
            said("kernel", f"{name.lower()}-{view.replace('_', '-')}"),
        )

    return (
        *TRIVIAL,
        *moco,
        additional("SimCLR", _in_batch(nce), "NT-Xent."),
        mmcl("INV", "both_views"),
        mmcl("INV", "first_view"),
        mmcl("PGD", "both_views", solver="projected_gradient"),
        additional(
            "DCL",
            _in_batch(term(debiased_nce, temperature=temperature, tau_plus=TAU_PLUS)),
            f"tau+ = {TAU_PLUS:g} as for images.",
        ),
        additional(
            "HCL",
            _in_batch(term(hard_nce, temperature=temperature, tau_plus=TAU_PLUS, beta=BETA)),
            f"tau+ = {TAU_PLUS:g} and beta = {BETA:g} as for images.",
        ),
        additional(
            "LMCL(SimCLR+DP)",
            _in_batch(nce, polarization()),
            said("polarized"),
        ),
        *map(cllr, NORMS),
        additional(
            "margins",
            _in_batch(term(margin_nce, temperature=temperature, angular=0.5, subtractive=0.4)),
            "m1 and m2 of SimCLR on CIFAR-10 (margins, Table 5).",
        ),
    )


TABLE_5 = Table(
    domain="video",
    paper="mmcl",
    name="table-5",
    title="UCF-101 without labels, S3D on RGB and on optical flow",
    section="Shah et al. 2022 (MMCL), Table 5",
    metric="top1",
    unit="%",
    protocol="coclr-linear-retrieval-v3",
    config=Config(protocol="coclr-linear-retrieval-v3"),
    rows=_rows(
        Config(),
        Row(
            "MoCo-v2",
            {},
            "MoCo-v2",
            f"{NOTES['moco']} Here: 300 epochs and batches of 128, as for MMCL.",
        ),
        Row(
            "MoCo-v2, batch 64",
            {"batch_size": 64},
            "MoCo-v2",
            "As MoCo-v2, in the batches of CoCLR's program, with twice as many steps.",
        ),
    ),
    columns=_columns(),
    seeds={"paper": (0, 1, 2), "smoke": (0,)},
    published=load_published(PUBLISHED / "mmcl.toml", "table-5"),
    varies="seed (initialisation, clips and their augmentation, order of batches); the split is "
    "the same for every seed",
    references=(load_published(PUBLISHED / "references.toml", "coclr"),),
    notes=NOTES.lines(
        "dataset coclr gains program queue siblings batch-norms fixed probes seeds interval"
    ),
    also=("ridge", "R@5", "R@10", "R@20", "top1_low", "top1_high"),
)

# At reduced scale the rows of the claims have nine seeds on RGB and four on flow, the others three.
CLAIMED = ("MoCo-v2", "MMCL INV, both views", "MMCL INV, first view", "MMCL PGD, both views")
SMALL_ROWS = _rows(
    SMALL_CONFIG,
    Row(
        "MoCo-v2",
        {},
        "MoCo-v2",
        f"{NOTES['moco']} Here: teacher momentum 0.99 instead of 0.999, with which initial weights "
        "would still make up three fifths of the teacher after 480 steps; the reduced scale's "
        "temperature of 0.1.",
    ),
)
TABLE_5_SMALL = dataclasses.replace(
    TABLE_5,
    name="table-5-small",
    title="UCF-101 without labels, a small R(2+1)D on RGB and on approximate (DIS) optical flow",
    protocol=SMALL_CONFIG.protocol,
    config=SMALL_CONFIG,
    rows=SMALL_ROWS,
    columns=_columns(),
    seeds={"short": tuple(range(9)), "smoke": (0,)},
    post_hoc_seeds={"short": dict.fromkeys(CLAIMED, 4)},
    seed_exceptions=(
        Seeds(
            (0, 1, 2),
            rows=tuple(row.label for row in SMALL_ROWS if row.label not in CLAIMED),
            tiers=("short",),
        ),
        Seeds((0, 1, 2, 3), ("Flow linear", "Flow R@1"), CLAIMED, ("short",)),
    ),
    short=SMALL,
    notes=NOTES.lines(
        "dataset small-setting small-chosen small-seeds probes small-mcnemar small-windows program "
        "retrieval-v2 queue siblings fixed-small"
    ),
    also=("ridge", "R@5", "R@10", "R@20"),
)

# The first reduced setting; its records have the address of the paper scale.
RECORDED = (
    "untrained encoder",
    "MoCo-v2",
    "SimCLR",
    "MMCL INV, both views",
    "MMCL PGD, both views",
)
TABLE_5_CLOSED = dataclasses.replace(
    TABLE_5,
    title="UCF-101 without labels, a narrow S3D on RGB: an earlier setting, closed",
    protocol="coclr-linear-retrieval-v1",
    config=Config(protocol="coclr-linear-retrieval-v1"),
    rows=tuple(row for row in TABLE_5.rows if row.label in RECORDED),
    columns=TABLE_5.columns[:2],
    seeds={"short": (0,)},
    published=TABLE_5.published.part(("RGB linear", "RGB R@1")),
    short=CLOSED,
    references=(),
    notes=NOTES.lines("closed dataset program retrieval-v2 queue closed-setting"),
    also=("R@5", "R@10", "R@20", "top1_low", "top1_high"),
)

TABLES = with_claims({"mmcl": (TABLE_5, TABLE_5_SMALL, TABLE_5_CLOSED)}, PUBLISHED / "claims.toml")
