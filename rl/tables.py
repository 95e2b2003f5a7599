"""The control tables of the papers as data; their prose is in ``published/notes.toml``.

Each is declared twice: as returns at 100K environment steps, and, for a CPU's budget, as an
additional question about the same rows: how much of the physics state their encoders hold
(``-state-probe``). Returns of a few rows on two tasks also fit a CPU (``RETURNS_ON_A_CPU``).
"""

import dataclasses
from pathlib import Path
from typing import Any

from rl.config import CURL, Config, ProbeConfig
from shared import Term, term
from shared.experiment.methods import (
    ALPHA,
    DCL,
    HCL,
    NCE,
    NORMS,
    OVER_BATCH,
    low_rank,
    polarized_row,
    svm_margin,
    trained_with,
)
from shared.experiment.published import load_notes, load_published, with_claims
from shared.experiment.tables import Column, Published, Row, Table
from shared.lazy import debiased_nce, hard_nce, margin_nce

PUBLISHED = Path(__file__).parent / "published"
NOTES = load_notes(PUBLISHED / "notes.toml")
row = NOTES.row


def _column(label: str, task: str, action_repeat: int, learning_rate: float = 1e-3) -> Column:
    # Laskin et al. 2020 (CURL), Table 3.
    return Column(
        label,
        {"task": task, "action_repeat": action_repeat, "learning_rate": learning_rate},
    )


SPIN = _column("Spin", "finger_spin", 2)
SWINGUP = _column("Swingup", "cartpole_swingup", 8)
EASY = _column("Easy", "reacher_easy", 4)
RUN = _column("Run", "cheetah_run", 4, 2e-4)
WALK = _column("Walk", "walker_walk", 2)
CATCH = _column("Catch", "ball_in_cup_catch", 4)
COLUMNS = (SPIN, SWINGUP, EASY, RUN, WALK, CATCH)

RAW = CURL.loss  # on raw bilinear scores
# The row without the method, its loss, its similarity, and the names of its notes.
BASES: tuple[tuple[str, Term, str, str], ...] = (
    ("CURL", RAW, "bilinear", ""),
    ("DCL", DCL, "cosine", "as-dcl"),
    ("HCL", HCL, "cosine", "as-hcl"),
)


# Rows of both papers.
RANDOM_ROW = row("random policy", {"train": False}, "random-policy", baseline=True, untrained=True)
SAC_ROW = row("SAC on the same crops", {"contrastive": False}, "sac")
CURL_ROW = row("CURL", {}, "agent contrast", published="CURL")
COSINE_ROWS = tuple(
    row(label, trained_with(loss, similarity="cosine"), notes, published=published)
    for label, loss, published, notes in (
        ("CURL, cosine", NCE, "CURL", "cosines cosine-base"),
        ("DCL", DCL, "DCL", "cosines debiased"),
        ("HCL", HCL, "HCL", "cosines hardened"),
    )
)

LMCL_ROWS = (
    RANDOM_ROW,
    SAC_ROW,
    CURL_ROW,
    row("CURL, single step", {"double_step": False}, "single-step", published="CURL"),
    row("CURL, batch 128", {"batch_size": 128}, "batch-128", published="CURL"),
    *COSINE_ROWS,
    *(
        polarized_row(f"LMCL({base}+DP)", loss, similarity, NOTES.text(f"{notes} anchor-sum"))
        for base, loss, similarity, notes in BASES
    ),
    polarized_row("LMCL(CURL+DP), mean", RAW, "bilinear", NOTES.text("mean"), reduction="mean"),
    polarized_row("LMCL(CURL+DP), cosine", NCE, "cosine", NOTES.text("cosines anchor-sum")),
    row(
        "DCL, raw scores",
        trained_with(term(debiased_nce, temperature=1.0, tau_plus=0.01, floor="minimum")),
        "lowest-score debiased",
    ),
    row(
        "HCL, raw scores",
        trained_with(term(hard_nce, temperature=1.0, tau_plus=0.01, beta=1.0, floor="minimum")),
        "lowest-score hardened one-negative",
    ),
    row(
        "margins",
        trained_with(
            term(margin_nce, temperature=0.1, angular=0.5, subtractive=0.4), similarity="cosine"
        ),
        "margins",
    ),
    row("MMCL", trained_with(svm_margin(gamma=0.5), similarity="cosine"), "mmcl"),
)

CLLR_ROWS = (
    RANDOM_ROW,
    SAC_ROW,
    CURL_ROW,
    *COSINE_ROWS,
    *(
        row(
            f"CLLR({base}+{norm}-norm){suffix}",
            trained_with(loss, projection=low_rank(norm, alpha), similarity=similarity),
            f"norm-{norm} {notes} of-50 {reason}",
            published=f"CLLR({base}+)",
        )
        for base, loss, similarity, notes in BASES
        for suffix, alpha, reason in (
            ("", ALPHA, "printed-alpha"),
            (OVER_BATCH, ALPHA / Config().batch_size, "over-batch"),
        )
        for norm in NORMS
    ),
    row(
        "CLLR(CURL+), authors' form",
        # L of the authors' image program has 512 rows for 2048 dimensions; the same share of 50.
        trained_with(
            RAW, projection=low_rank("none", 0.0, form="authors", rows=12), similarity="bilinear"
        ),
        "authors-form",
        published="CLLR(CURL+)",
    ),
)


def _returns(
    paper: str, name: str, by: str, rows: tuple[Row, ...], variance_ratios: str, gain: int
) -> Table:
    """Returns at 100K environment steps.

    ``variance_ratios`` are those of CURL's published returns to those with the method, ``gain`` is
    the largest published gain of the method.
    """
    printed_as = name.replace("-", " ").capitalize()
    return Table(
        domain="rl",
        paper=paper,
        name=name,
        title="DeepMind Control from pixels, returns at 100K environment steps",
        section=f"{by}, {printed_as}",
        metric="return",
        unit="points of 1000",
        protocol=Config().protocol,
        config=Config(),
        rows=rows,
        columns=COLUMNS,
        seeds={"paper": (0, 1, 2), "smoke": (0,)},
        published=load_published(PUBLISHED / f"{paper}.toml", name),
        varies="seed (initialisation, batches, actions, episodes of training and of evaluation)",
        references=tuple(
            load_published(PUBLISHED / "references.toml", key)
            for key in ("curl-100k", "curl-500k", "curl-issue-15", "curl-rerun", "drq")
        ),
        notes=(
            *NOTES.lines("labels printed-curl printed-equal"),
            NOTES["power"].format(gain=gain),
            *NOTES.lines("left-open fixed simulator cost"),
            NOTES["variance"].format(table=printed_as, ratios=variance_ratios),
        ),
    )


def _probe(returns: Table, notes: str = "") -> Table:
    """An additional question about the rows of ``returns`` that train an encoder contrastively."""
    about = f"about the rows of {returns.section}"
    return dataclasses.replace(
        returns,
        name=f"{returns.name}-state-probe",
        section=f"Additional question {about}",
        title="DeepMind Control from pixels, physics state read from the embedding",
        metric="r2",
        unit="% of variance",
        protocol=ProbeConfig().protocol,
        config=ProbeConfig(),
        rows=(
            row(
                "raw pixels",
                {"train": False, "probe_input": "pixels"},
                "probe-pixels",
                baseline=True,
            ),
            row("untrained encoder", {"train": False}, "untrained", baseline=True, untrained=True),
            *(
                dataclasses.replace(
                    each,
                    published=None,
                    deviation=NOTES["contrast"] if each == CURL_ROW else each.deviation,
                )
                for each in returns.rows
                if each not in (RANDOM_ROW, SAC_ROW) and each.label != "CURL, batch 128"
            ),
        ),
        published=Published(
            f"A question of this suite, {about}", "Physics state read from the embedding", (), {}
        ),
        references=(),
        seeds={"short": (0, 1, 2), "smoke": (0,)},
        short={"batch_size": 64, "precision": "bfloat16"},
        varies="seed (frames, initialisation, batches)",
        notes=NOTES.lines(
            "labels probe-question probe-setting probe-seeds probe-limits probe-chosen fixed "
            f"{notes}"
        ),
        also=("r2_position", "r2_velocity"),
    )


TABLE_5 = _returns("lmcl", "table-5", "Chen et al. 2021 (LMCL)", LMCL_ROWS, "0.7 to 6.1", 41)
TABLE_5_PROBE = _probe(TABLE_5)
TABLE_4 = _returns("cllr", "table-4", "Chen et al. 2022 (CLLR)", CLLR_ROWS, "1.0 to 27.7", 42)
TABLE_4_PROBE = _probe(TABLE_4, "probe-cllr alpha-of-512")

ON_A_CPU: dict[str, Any] = {"batch_size": 128, "precision": "bfloat16_convolutions"}
# Unless an agent from pixels is shown to learn, this domain's returns are not evidence.
LEARNING_GATE = dataclasses.replace(
    TABLE_5,
    paper="curl",
    name="learning-gate",
    title="Does an agent from pixels learn at all?",
    section="Additional question about the agent of Laskin et al. 2020 (CURL)",
    rows=(
        RANDOM_ROW,
        row("CURL, batch 128, bfloat16 convolutions", ON_A_CPU, "gate-agent"),
    ),
    columns=(SWINGUP,),
    seeds={"short": (0,), "smoke": (0,)},
    published=Published("A question of this suite", "Return at 100K environment steps", (), {}),
    references=(load_published(PUBLISHED / "references.toml", "curl-rerun"),),
    notes=NOTES.lines("gate-threshold gate-outcome"),
)
RETURNS_ON_A_CPU = dataclasses.replace(
    LEARNING_GATE,
    name="returns-on-a-cpu",
    title="DeepMind Control from pixels, mean return from 20K to 100K environment steps",
    section="Additional question about rows of LMCL's Table 5 and CLLR's Table 4",
    metric="mean_return",
    protocol="dmc-return-v2",
    config=Config(protocol="dmc-return-v2"),
    rows=(
        RANDOM_ROW,
        SAC_ROW,
        dataclasses.replace(CURL_ROW, published=None, deviation=NOTES["contrast"]),
        *(
            dataclasses.replace(each, published=None)
            for each in LMCL_ROWS
            if each.label in ("LMCL(CURL+DP)", "LMCL(DCL+DP)")
        ),
        row(
            f"CLLR(CURL+nuclear-norm){OVER_BATCH}",
            trained_with(
                RAW,
                projection=low_rank("nuclear", ALPHA / ON_A_CPU["batch_size"]),
                similarity="bilinear",
            ),
            "norm-nuclear of-50 over-batch-128",
        ),
    ),
    columns=(SWINGUP, CATCH),
    seeds={"short": tuple(range(8)), "smoke": (0,)},
    published=Published(
        "A question of this suite",
        "Mean return from 20K to 100K environment steps",
        (),
        {},
    ),
    short=ON_A_CPU,
    notes=NOTES.lines("labels cpu-setting cpu-power"),
    also=("return",),
)

TABLES = with_claims(
    {
        "lmcl": (TABLE_5, TABLE_5_PROBE),
        "cllr": (TABLE_4, TABLE_4_PROBE),
        "curl": (LEARNING_GATE, RETURNS_ON_A_CPU),
    },
    PUBLISHED / "claims.toml",
)
# The tables whose runs have policies, which can be filmed, by paper.
AGENTS = {
    paper: tuple(table for table in tables if table.protocol.startswith("dmc-return"))
    for paper, tables in TABLES.items()
}
