"""The control tables of the papers as data; their prose is in ``published/notes.toml``.

Each is declared three times: as returns at 100K environment steps, and, for a CPU's budget, as two
additional questions about the same rows: how well one acts on what their encoders make of an
expert's frames (``-imitation``), and how much of the physics state they hold (``-state-probe``, the
first of these). Returns of a few rows on two tasks fit a CPU, too (``RETURNS_ON_A_CPU``).
"""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rl.config import CURL, Config, ImitationConfig, ProbeConfig
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
    Published,
    Row,
    Seeds,
    Table,
    load_notes,
    load_published,
)

PUBLISHED = Path(__file__).parent / "published"
NOTES = load_notes(PUBLISHED / "notes.toml")


def _column(label: str, task: str, action_repeat: int, learning_rate: float = 1e-3) -> Column:
    # Laskin et al. 2020 (CURL), Table 3.
    decisions = Config().environment_steps / action_repeat
    return Column(
        label,
        {"task": task, "action_repeat": action_repeat, "learning_rate": learning_rate},
        # An update takes 8 seconds on one CPU core; the rest is negligible.
        minutes=round((decisions - Config().initial_steps) * 8 / 60),
        # Of an update, estimated, and of the replay: 30 kB for each decision.
        gigabytes=round(3.0 + decisions * 30e-6, 1),
    )


SPIN = _column("Spin", "finger_spin", 2)
SWINGUP = _column("Swingup", "cartpole_swingup", 8)
EASY = _column("Easy", "reacher_easy", 4)
RUN = _column("Run", "cheetah_run", 4, 2e-4)
WALK = _column("Walk", "walker_walk", 2)
CATCH = _column("Catch", "ball_in_cup_catch", 4)
COLUMNS = (SPIN, SWINGUP, EASY, RUN, WALK, CATCH)
LABELS = tuple(column.label for column in COLUMNS)

# Losses. The temperature, tau+ and beta were fixed before any run: none is printed for control.
RAW = CURL.loss  # of bilinear scores
NCE = term(info_nce, temperature=0.1)
DCL = term(debiased_nce, temperature=0.1, tau_plus=0.01)
HCL = term(hard_nce, temperature=0.1, tau_plus=0.01, beta=1.0)
# The row without the method, its loss, its similarity, and notes on them.
BASES: tuple[tuple[str, Term, str, tuple[str, ...]], ...] = (
    ("CURL", RAW, "bilinear", ()),
    ("DCL", DCL, "cosine", ("as-dcl",)),
    ("HCL", HCL, "cosine", ("as-hcl",)),
)
# Printed. A direction of mean square e and singular value s of L costs alpha s + e (1 - s^2)^2, and
# e when L drops it: L keeps it only where e > alpha / max(2 s - s^3) = 0.919 alpha. The l2,1 norm
# is no smaller than the nuclear norm.
ALPHA = 10.0
OVER = ", norm over batch"
NORMS = ("l21", "nuclear")


def _said(*names: str) -> str:
    return " ".join(NOTES[name] for name in names)


def _trained(
    loss: Term, similarity: str, *penalties: Term, projection: Projection | None = None
) -> dict[str, Any]:
    return {"objective": Objective(loss, penalties, projection), "similarity": similarity}


def _lmcl(
    label: str, loss: Term, similarity: str, *said: str, reduction: str = "anchor_sum"
) -> Row:
    # lambda = 0.1, delta+ = 0.1 and delta- = 0.5 are printed.
    penalty = term(distance_polarization, weight=0.1, lower=0.1, upper=0.5, reduction=reduction)
    published, _, _ = label.partition(",")
    return Row(label, _trained(loss, similarity, penalty), published, _said(*said))


def _low_rank(
    loss: Term, similarity: str, norm: str, alpha: float, **options: Any
) -> dict[str, Any]:
    # lambda = 0.1 is printed.
    projection = Projection(0.1, {"norm": norm, "alpha": alpha, **options})
    return _trained(loss, similarity, projection=projection)


# Rows of both papers.
RANDOM_ROW = Row("random policy", {"train": False}, deviation=NOTES["random-policy"])
SAC_ROW = Row("SAC on the same crops", {"contrastive": False}, deviation=NOTES["sac"])
CURL_ROW = Row("CURL", {}, "CURL", _said("agent", "contrast"))
COSINE_ROWS = (
    Row("CURL, cosine", _trained(NCE, "cosine"), "CURL", _said("cosines", "cosine-base")),
    Row("DCL", _trained(DCL, "cosine"), "DCL", _said("cosines", "debiased")),
    Row("HCL", _trained(HCL, "cosine"), "HCL", _said("cosines", "hardened")),
)

LMCL_ROWS = (
    RANDOM_ROW,
    SAC_ROW,
    CURL_ROW,
    Row("CURL, single step", {"double_step": False}, "CURL", NOTES["single-step"]),
    Row("CURL, batch 128", {"batch_size": 128}, "CURL", NOTES["batch-128"]),
    *COSINE_ROWS,
    *(
        _lmcl(f"LMCL({base}+DP)", loss, similarity, *said, "anchor-sum")
        for base, loss, similarity, said in BASES
    ),
    _lmcl("LMCL(CURL+DP), mean", RAW, "bilinear", "mean", reduction="mean"),
    _lmcl("LMCL(CURL+DP), cosine", NCE, "cosine", "cosines", "anchor-sum"),
    Row(
        "DCL, raw scores",
        {
            "objective": Objective(
                term(debiased_nce, temperature=1.0, tau_plus=0.01, floor="minimum")
            )
        },
        deviation=_said("lowest-score", "debiased"),
    ),
    Row(
        "HCL, raw scores",
        {
            "objective": Objective(
                term(hard_nce, temperature=1.0, tau_plus=0.01, beta=1.0, floor="minimum")
            )
        },
        deviation=_said("lowest-score", "hardened", "one-negative"),
    ),
    Row(
        "margins",
        _trained(term(margin_nce, temperature=0.1, angular=0.5, subtractive=0.4), "cosine"),
        deviation=NOTES["margins"],
    ),
    Row(
        "MMCL",
        _trained(term(max_margin, gamma=0.5, cost=100.0, ridge=0.1), "cosine"),
        deviation=NOTES["mmcl"],
    ),
)

CLLR_ROWS = (
    RANDOM_ROW,
    SAC_ROW,
    CURL_ROW,
    *COSINE_ROWS,
    *(
        Row(
            f"CLLR({base}+{norm}-norm){suffix}",
            _low_rank(loss, similarity, norm, alpha),
            f"CLLR({base}+)",
            _said(f"norm-{norm}", *said, "of-50", reason),
        )
        for base, loss, similarity, said in BASES
        for suffix, alpha, reason in (
            ("", ALPHA, "printed-alpha"),
            (OVER, ALPHA / Config().batch_size, "over-batch"),
        )
        for norm in NORMS
    ),
    Row(
        "CLLR(CURL+), authors' form",
        # L of the authors' image program has 512 rows for 2048 dimensions; of 50, as large a share.
        _low_rank(RAW, "bilinear", "none", 0.0, form="authors", rows=12),
        "CLLR(CURL+)",
        NOTES["authors-form"],
    ),
)


def _returns(paper: str, name: str, by: str, rows: tuple[Row, ...], variance_ratios: str) -> Table:
    """Returns at 100K environment steps.

    ``variance_ratios`` are those of CURL's printed returns to those with the method.
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
            *(
                NOTES[each]
                for each in (
                    "labels",
                    "printed-curl",
                    "printed-equal",
                    "power",
                    "left-open",
                    "fixed",
                    "simulator",
                    "cost",
                )
            ),
            NOTES["variance"].format(table=printed_as, ratios=variance_ratios),
        ),
        aggregates=("interquartile mean",),
    )


def _question(
    returns: Table, suffix: str, measured: str, trivial: Sequence[Row], **changes: Any
) -> Table:
    """An additional question about the rows of ``returns`` that train an encoder by contrast.

    Args:
        returns: the table that it derives from.
        suffix: of its name.
        measured: what it measures.
        trivial: its rows that train none.
        changes: further fields of the table.
    """
    about = f"about the rows of {returns.section}"
    return dataclasses.replace(
        returns,
        name=f"{returns.name}-{suffix}",
        section=f"Additional question {about}",
        protocol=changes["config"].protocol,
        rows=(
            *trivial,
            *(
                dataclasses.replace(
                    row,
                    published=None,
                    deviation=NOTES["contrast"] if row == CURL_ROW else row.deviation,
                )
                for row in returns.rows
                if row not in (RANDOM_ROW, SAC_ROW) and row.label != "CURL, batch 128"
            ),
        ),
        published=Published(f"A question of this suite, {about}", measured, (), {}),
        references=(),
        **changes,
    )


UNTRAINED = {"train": False}
PIXELS = {"train": False, "probe_input": "pixels"}


def _probe(returns: Table, *notes: str) -> Table:
    return _question(
        returns,
        "state-probe",
        "Physics state read from the embedding",
        (
            Row("raw pixels", PIXELS, deviation=NOTES["probe-pixels"]),
            Row("untrained encoder", UNTRAINED, deviation=NOTES["untrained"]),
        ),
        title="DeepMind Control from pixels, physics state read from the embedding",
        metric="r2",
        unit="% of variance",
        config=ProbeConfig(),
        # 0.17 seconds an update, measured on one of two busy CPU cores; one row of a seed renders
        # the frames.
        columns=tuple(dataclasses.replace(c, minutes=2.0, gigabytes=1.0) for c in COLUMNS),
        seeds={"short": (0, 1, 2), "smoke": (0,)},
        short={"batch_size": 64, "precision": "bfloat16"},
        varies="seed (frames, initialisation, batches)",
        blocked=True,
        notes=tuple(
            NOTES[each]
            for each in (
                "labels",
                "probe-question",
                "probe-setting",
                "probe-seeds",
                "probe-limits",
                "probe-chosen",
                "probe-closed",
                "fixed",
                *notes,
            )
        ),
        also=("r2_position", "r2_velocity"),
        aggregates=(),
    )


# Soft actor-critic on states needs more decisions than the 15,000 of Swingup and Catch here.
EXPERTS = {label: {"expert_decisions": 60_000} for label in ("Spin", "Easy", "Run", "Walk")}
# Rows without a claim: fewer seeds, on the task where contrast was first seen to act.
UNCLAIMED = ("CURL, single step", "DCL, raw scores", "HCL, raw scores", "margins", "MMCL")
# Where a row without the method lies below a trivial baseline, as measured.
BELOW_A_BASELINE = {
    "CURL": ("Spin", "Swingup", "Run", "Walk", "Catch"),
    "CURL, cosine": ("Spin", "Swingup", "Run"),
    "DCL": ("Spin", "Swingup", "Run"),
    "HCL": ("Spin", "Swingup", "Run", "Walk"),
}
# There the rows with the method are not run; the three printed rows of LMCL had run on all six
# tasks before that was decided.
BASE_OF = {
    "LMCL(CURL+DP), mean": "CURL",
    "LMCL(CURL+DP), cosine": "CURL, cosine",
    **{
        f"CLLR({base}+{norm}-norm){suffix}": base
        for base, *_ in BASES
        for suffix in ("", OVER)
        for norm in NORMS
    },
    "CLLR(CURL+), authors' form": "CURL",
}
READ = ("action_r2", "r2", "r2_position", "r2_velocity")
IMITATION_TRIVIAL = (
    Row(
        "random actions",
        {"train": False, "acts": "random"},
        deviation=NOTES["random-actions"],
        baseline=True,
    ),
    Row("raw pixels", PIXELS, deviation=NOTES["imitation-pixels"], baseline=True),
    Row("untrained encoder", UNTRAINED, deviation=NOTES["untrained"], baseline=True),
    Row("state expert", {"train": False, "acts": "expert"}, deviation=NOTES["state-expert"]),
)


def _imitation(returns: Table, *notes: str) -> Table:
    labels = [row.label for row in returns.rows]
    unclaimed = tuple(label for label in UNCLAIMED if label in labels)
    without_catch = tuple(label for label in LABELS if label != "Catch")
    return _question(
        returns,
        "imitation",
        "Imitation returns",
        IMITATION_TRIVIAL,
        title="DeepMind Control from pixels, an expert imitated from the embedding",
        config=ImitationConfig(),
        columns=tuple(
            dataclasses.replace(
                column,
                changes={**column.changes, **EXPERTS.get(column.label, {})},
                # 40 seconds of a core, and the episodes of the evaluation, whose decisions take
                # 10 ms each, as measured on Swingup. The first cell of a task trains its expert
                # and draws its frames, 3 minutes, of 60,000 decisions 10.
                minutes=round((40 + 100 / column.changes["action_repeat"]) / 60, 1),
                gigabytes=1.5,
            )
            for column in COLUMNS
        ),
        seeds={"short": (0, 1, 2, 3), "smoke": (0,)},
        fewer=(
            *(
                Seeds(seeds, columns, unclaimed, ("short",))
                for seeds, columns in (((0, 1), ("Catch",)), ((), without_catch))
                if unclaimed
            ),
            *(
                Seeds((), BELOW_A_BASELINE[base], (label,), ("short",))
                for label, base in BASE_OF.items()
                if label in labels
            ),
        ),
        varies="seed (initialisation, batches, head, episodes of evaluation)",
        notes=tuple(
            NOTES[each]
            for each in (
                "labels",
                "imitation-question",
                "imitation-setting",
                "imitation-action",
                "imitation-state",
                "imitation-seeds",
                "imitation-pilot",
                "imitation-declared",
                "imitation-experts",
                "imitation-left-out",
                "imitation-frames",
                "imitation-penalties",
                "fixed",
                *notes,
            )
        ),
        also=READ,
        units=dict.fromkeys(READ, "% of variance"),
    )


TABLE_5 = _returns("lmcl", "table-5", "Chen et al. 2021 (LMCL)", LMCL_ROWS, "0.7 to 6.1")
TABLE_5_PROBE = _probe(TABLE_5)
TABLE_5_IMITATION = _imitation(TABLE_5)
TABLE_4 = _returns("cllr", "table-4", "Chen et al. 2022 (CLLR)", CLLR_ROWS, "1.0 to 27.7")
TABLE_4_PROBE = _probe(TABLE_4, "probe-cllr")
TABLE_4_IMITATION = _imitation(TABLE_4, "imitation-cllr")

ON_A_CPU: dict[str, Any] = {"batch_size": 128, "precision": "bfloat16_convolutions"}
# Until an agent from pixels is seen to learn, no return of this domain says anything.
LEARNING_GATE = dataclasses.replace(
    TABLE_5,
    paper="curl",
    name="learning-gate",
    title="Does an agent from pixels learn at all?",
    section="Additional question about the agent of Laskin et al. 2020 (CURL)",
    rows=(
        RANDOM_ROW,
        Row("CURL, batch 128, bfloat16 convolutions", ON_A_CPU, deviation=NOTES["gate-agent"]),
    ),
    columns=(dataclasses.replace(SWINGUP, minutes=200.0, gigabytes=2.0),),
    seeds={"short": (0,), "smoke": (0,)},
    published=Published("A question of this suite", "Return at 100K environment steps", (), {}),
    references=(load_published(PUBLISHED / "references.toml", "curl-rerun"),),
    notes=(NOTES["gate-threshold"], NOTES["gate-outcome"]),
    aggregates=(),
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
        dataclasses.replace(RANDOM_ROW, baseline=True),
        SAC_ROW,
        dataclasses.replace(CURL_ROW, published=None, deviation=NOTES["contrast"]),
        *(
            dataclasses.replace(row, published=None)
            for row in LMCL_ROWS
            if row.label in ("LMCL(CURL+DP)", "LMCL(DCL+DP)")
        ),
        Row(
            f"CLLR(CURL+nuclear-norm){OVER}",
            _low_rank(RAW, "bilinear", "nuclear", ALPHA / ON_A_CPU["batch_size"]),
            deviation=_said("norm-nuclear", "of-50", "over-batch-128"),
        ),
    ),
    # As the learning gate took on a core; Catch has 24,000 updates where Swingup has 11,500.
    columns=(
        dataclasses.replace(SWINGUP, minutes=146.0, gigabytes=2.0),
        dataclasses.replace(CATCH, minutes=305.0, gigabytes=2.0),
    ),
    seeds={"short": tuple(range(8)), "smoke": (0,)},
    published=Published(
        "A question of this suite",
        "Mean return from 20K to 100K environment steps",
        (),
        {},
    ),
    short=ON_A_CPU,
    notes=(NOTES["labels"], NOTES["cpu-setting"], NOTES["cpu-power"]),
    also=("return",),
)

TABLES = with_claims(
    {
        "lmcl": (TABLE_5, TABLE_5_PROBE, TABLE_5_IMITATION),
        "cllr": (TABLE_4, TABLE_4_PROBE, TABLE_4_IMITATION),
        "curl": (LEARNING_GATE, RETURNS_ON_A_CPU),
    },
    PUBLISHED / "claims.toml",
)
# Those whose runs have policies, by paper: what is filmed.
AGENTS = {
    paper: tuple(table for table in some if table.protocol.startswith("dmc-return"))
    for paper, some in TABLES.items()
}
