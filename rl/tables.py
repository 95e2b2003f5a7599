"""The control tables of the papers as data.

Each is declared three times: as returns at 100K environment steps, and, for a CPU's budget, as two
questions of our own to the same rows: how well one acts on what their encoders make of an expert's
frames (``-imitation``), and how much of the physics state they hold (``-state-probe``, the first of
these). Returns of a few rows on two tasks are in a CPU's reach, too (``RETURNS_ON_A_CPU``).
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
    Tier,
    load_published,
)

PUBLISHED = Path(__file__).parent / "published"

# Ours, fixed before any run: the papers print none of these for control.
TEMPERATURE = 0.1
TAU_PLUS = 0.01
BETA = 1.0

RAW = CURL.loss  # of bilinear scores
NCE = term(info_nce, temperature=TEMPERATURE)
DCL = term(debiased_nce, temperature=TEMPERATURE, tau_plus=TAU_PLUS)
HARD = term(hard_nce, temperature=TEMPERATURE, tau_plus=TAU_PLUS, beta=BETA)

ALPHA = 10.0  # printed
OVER = ", norm over batch"
NORMS = (("l21-norm", "l21"), ("nuclear-norm", "nuclear"))
# L of the authors' image program has 512 rows for 2048 dimensions; of 50, as large a share.
AUTHORS_ROWS = 12

SEEDS: dict[Tier, tuple[int, ...]] = {"paper": (0, 1, 2), "short": (), "smoke": (0,)}
PROBE_SEEDS: dict[Tier, tuple[int, ...]] = {"paper": (), "short": (0, 1, 2), "smoke": (0,)}


def _column(label: str, task: str, action_repeat: int, learning_rate: float = 1e-3) -> Column:
    # Laskin et al. 2020 (CURL), Table 3.
    changes = {"task": task, "action_repeat": action_repeat, "learning_rate": learning_rate}
    decisions = Config().environment_steps / action_repeat
    return Column(
        label,
        changes,
        # An update takes 8 seconds on one CPU core; beside it nothing counts.
        minutes=round((decisions - Config().initial_steps) * 8 / 60),
        # Of an update, estimated, and of the replay: 30 kB for each decision.
        gigabytes=round(3.0 + decisions * 30e-6, 1),
    )


COLUMNS = (
    _column("Spin", "finger_spin", 2),
    _column("Swingup", "cartpole_swingup", 8),
    _column("Easy", "reacher_easy", 4),
    _column("Run", "cheetah_run", 4, 2e-4),
    _column("Walk", "walker_walk", 2),
    _column("Catch", "ball_in_cup_catch", 4),
)
LABELS = tuple(column.label for column in COLUMNS)
# 0.17 seconds an update, measured on one of two busy CPU cores; one row of a seed renders frames.
PROBE_COLUMNS = tuple(dataclasses.replace(each, minutes=2.0, gigabytes=1.0) for each in COLUMNS)


def _cosine(loss: Term) -> dict[str, Any]:
    return {"objective": Objective(loss), "similarity": "cosine"}


def _polarized(loss: Term, similarity: str, reduction: str = "anchor_sum") -> dict[str, Any]:
    # lambda = 0.1, delta+ = 0.1 and delta- = 0.5 are printed.
    penalty = term(distance_polarization, weight=0.1, lower=0.1, upper=0.5, reduction=reduction)
    return {"objective": Objective(loss, (penalty,)), "similarity": similarity}


def _low_rank(loss: Term, similarity: str, **options: Any) -> dict[str, Any]:
    # lambda = 0.1 is printed.
    projection = Projection(0.1, options)
    return {"objective": Objective(loss, projection=projection), "similarity": similarity}


AGENT = (
    "100K are environment steps, frames of the physics, as in CURL's paper: LMCL and CLLR do not "
    "say, and the log of CURL's program counts the agent's decisions. Batch 512 as in CURL's Table "
    "3, where its program's published command has 128. Evaluated every 10K steps and at 100K "
    "exactly, in environments and with seeds of their own: the program's grid misses 100K, and it "
    "evaluates in the training environment."
)
CONTRAST = (
    "The encoder is stepped twice on each contrastive gradient, as in CURL's program, from which "
    "its paper's curves come; the paper's pseudo-code steps it once. Crops lie at offsets 0 to 16, "
    "of which the program never draws the last."
)
COSINES = (
    f"Cosines over a temperature of {TEMPERATURE:g}, where CURL has raw bilinear scores: DCL, HCL "
    "and margins need bounded scores. No paper prints a temperature for control, and CURL's "
    "comparison (Fig. 5) has bilinear scores ahead of cosines on cheetah."
)
DEBIASED = f"tau+ = {TAU_PLUS:g} is not printed for control."
HARDENED = f"beta = {BETA:g} is not printed for control, and neither is tau+ = {TAU_PLUS:g}."
ANCHOR_SUM = (
    "How Eq. 10 adds the pairs up is not determined: here over the pairs of an anchor, then the "
    "mean over anchors. Pairs are q of one image and the momentum encoder's k of another, "
    "normalised; the gradient goes through q alone and counts in both steps of the encoder."
)
MEAN = (
    "Eq. 10 read as the mean over all pairs: lambda times the penalty is at most 0.004, beside a "
    "cross-entropy that starts near the logarithm of the batch size, 6.2 for 512."
)
FLOOR = (
    "Raw bilinear scores, for which the lower limit of cosines does not hold: here the number of "
    "negatives times exp of an anchor's lowest score."
)
SAID = {
    "l21": "The table does not name the norm, and the text names the nuclear one: here l2,1.",
    "nuclear": "The table does not name the norm: here the nuclear one, as the text says of CURL.",
}
OF_50 = (
    "L is 50 x 50, started as the identity, and works on the unnormalised q: CURL's latent has 50 "
    "dimensions, so that the printed 256 cannot hold. Actor and critic read q, not L q; the paper "
    "does not say."
)
# A direction of mean square e and singular value s of L costs alpha s + e (1 - s^2)^2, and e when L
# drops it: L keeps it only where e > alpha / max(2 s - s^3) = 0.919 alpha. The l2,1 norm is no
# smaller than the nuclear norm.
PRINTED_ALPHA = (
    "alpha = 10 as printed: L keeps a direction of q only where its mean square exceeds 9.2. The "
    "final LayerNorm starts |q|^2 at 50, which is enough for five directions at most; a warning "
    "says when L has lost all."
)
OVER_BATCH = (
    "The norm of L divided by the batch size (alpha = 10 / 512), as the authors' image program "
    "divides what it penalises: our reading, since the printed alpha may leave little of L."
)

# Rows of both papers.
CONTROLS = (
    Row(
        "random policy",
        {"train": False},
        deviation="Printed by no paper: uniformly random actions; what learning adds is measured "
        "from here.",
    ),
    Row(
        "SAC on the same crops",
        {"contrastive": False},
        deviation="Printed by no paper: the same agent without the contrastive step. 'Pixel SAC' "
        "of CURL's paper sees no crops, so that it is not this row.",
    ),
)
CURL_ROW = Row("CURL", published="CURL", deviation=f"{AGENT} {CONTRAST}")
SINGLE_ROW = Row(
    "CURL, single step",
    {"double_step": False},
    published="CURL",
    deviation="One Adam step of the encoder on each contrastive gradient, as in the pseudo-code of "
    "CURL's paper, where its program makes two.",
)
BATCH_128_ROW = Row(
    "CURL, batch 128",
    {"batch_size": 128},
    published="CURL",
    deviation="The batch of the published command of CURL's program, where its Table 3 has 512.",
)
CURL_COSINE_ROW = Row(
    "CURL, cosine",
    _cosine(NCE),
    published="CURL",
    deviation=f"{COSINES} The base from which the other rows of cosines are measured.",
)
FAMILY = (
    Row("DCL", _cosine(DCL), published="DCL", deviation=f"{COSINES} {DEBIASED}"),
    Row("HCL", _cosine(HARD), published="HCL", deviation=f"{COSINES} {HARDENED}"),
)
# The row without the method, its loss, its similarity, and what is to be said of them.
BASES = (
    ("CURL", RAW, "bilinear", ""),
    ("DCL", DCL, "cosine", "Cosines and numbers of DCL as in its row. "),
    ("HCL", HARD, "cosine", "Cosines and numbers of HCL as in its row. "),
)

LMCL_ROWS = (
    *CONTROLS,
    CURL_ROW,
    SINGLE_ROW,
    BATCH_128_ROW,
    CURL_COSINE_ROW,
    *FAMILY,
    *(
        Row(
            f"LMCL({base}+DP)",
            _polarized(loss, similarity),
            published=f"LMCL({base}+DP)",
            deviation=f"{as_in_its_row}{ANCHOR_SUM}",
        )
        for base, loss, similarity, as_in_its_row in BASES
    ),
    Row(
        "LMCL(CURL+DP), mean",
        _polarized(RAW, "bilinear", "mean"),
        published="LMCL(CURL+DP)",
        deviation=MEAN,
    ),
    Row(
        "LMCL(CURL+DP), cosine",
        _polarized(NCE, "cosine"),
        published="LMCL(CURL+DP)",
        deviation=f"{COSINES} {ANCHOR_SUM}",
    ),
    Row(
        "DCL, raw scores",
        {
            "objective": Objective(
                term(debiased_nce, temperature=1.0, tau_plus=TAU_PLUS, floor="minimum")
            )
        },
        deviation=f"{FLOOR} {DEBIASED}",
    ),
    Row(
        "HCL, raw scores",
        {
            "objective": Objective(
                term(hard_nce, temperature=1.0, tau_plus=TAU_PLUS, beta=BETA, floor="minimum")
            )
        },
        deviation=f"{FLOOR} {HARDENED} Scores of some tens leave the weights on one negative.",
    ),
    Row(
        "margins",
        _cosine(term(margin_nce, temperature=TEMPERATURE, angular=0.5, subtractive=0.4)),
        deviation="m1 and m2 of SimCLR on CIFAR-10 (margins, Table 5).",
    ),
    Row(
        "MMCL",
        _cosine(term(max_margin, gamma=0.5, cost=100.0, ridge=0.1)),
        deviation="Closed form; the kernel's width is MMCL's of STL-10 (sigma^2 = 1, read as "
        "gamma = 0.5), C = 100. One support vector machine for each q against the k of the others.",
    ),
)

CLLR_ROWS = (
    *CONTROLS,
    CURL_ROW,
    CURL_COSINE_ROW,
    *FAMILY,
    *(
        Row(
            f"CLLR({base}+{name}){suffix}",
            _low_rank(loss, similarity, norm=norm, alpha=alpha),
            published=f"CLLR({base}+)",
            deviation=f"{SAID[norm]} {as_in_its_row}{OF_50} {reason}",
        )
        for base, loss, similarity, as_in_its_row in BASES
        for suffix, alpha, reason in (
            ("", ALPHA, PRINTED_ALPHA),
            (OVER, ALPHA / Config().batch_size, OVER_BATCH),
        )
        for name, norm in NORMS
    ),
    Row(
        "CLLR(CURL+), authors' form",
        _low_rank(RAW, "bilinear", norm="none", alpha=0.0, form="authors", rows=AUTHORS_ROWS),
        published="CLLR(CURL+)",
        deviation="As the authors' image program: no norm of L, which starts standard normal; q "
        "and its reconstruction scaled to unit length; the Frobenius norm of their difference over "
        f"the batch size. L has {AUTHORS_ROWS} rows, a quarter of the 50 dimensions of q, as the "
        "program's 512 are a quarter of its 2048. Actor and critic read q.",
    ),
)

ON_A_CPU: dict[str, Any] = {"batch_size": 128, "precision": "bfloat16_convolutions"}
GATE_LABEL = "CURL, batch 128, bfloat16 convolutions"

# With the same loss on the same scores without the method.
LMCL_COMPARISONS = (
    ("LMCL(CURL+DP)", "CURL"),
    ("LMCL(CURL+DP), mean", "CURL"),
    ("LMCL(CURL+DP), cosine", "CURL, cosine"),
    ("LMCL(DCL+DP)", "DCL"),
    ("LMCL(HCL+DP)", "HCL"),
)
CLLR_COMPARISONS = (
    *(
        (f"CLLR({base}+{name}){suffix}", base)
        for base, *_ in BASES
        for suffix in ("", OVER)
        for name, _ in NORMS
    ),
    ("CLLR(CURL+), authors' form", "CURL"),
)


LABEL_NOTE = (
    "Spin is finger spin, Swingup cartpole swingup, Easy reacher easy, Run cheetah run, Walk "
    "walker walk, Catch ball-in-cup catch."
)
SILENT_NOTE = (
    "Temperature, tau+ and beta were fixed before any run; no control code of LMCL, CLLR, DCL or "
    "HCL is public."
)
NOTES = (
    LABEL_NOTE,
    "The printed CURL row is not the one of CURL's paper, which stands below: it is lower on Spin "
    "and higher on Swingup, Easy, Walk and Catch. No single reading of '100K' explains it, so that "
    "both papers' numbers are ordinal at best.",
    "The Run cells of LMCL's three rows with DP and of CLLR's three rows are equal, mean and "
    "deviation, and so are their means on Walk: two methods cannot be expected to agree like this.",
    "With 3 seeds and a deviation of 100 points, as reruns of CURL have it, differences below some "
    "230 points are not significant (two-sample t test, 5%); the largest printed gain over the "
    "same loss without the method is 42.",
    "Everything the papers leave open is as in CURL's paper and program: action repeats, learning "
    "rate 1e-3 and 2e-4 on Run, 1000 random decisions before the first update, 10 episodes of "
    "evaluation without noise. Deviations are over seeds, not over episodes.",
    SILENT_NOTE,
    "Simulator and renderer are not those of 2020, which shifts returns; each run records both.",
    "An update of 512 takes 8 seconds of a CPU core, from which the planned minutes are computed: "
    "a cell is a day or more of a core. With batches of 128 it is two and a half hours on Swingup: "
    "rl/curl has such an agent ('learning-gate') and a short tier of returns ('returns-on-a-cpu'). "
    "In the short tier, the tables that end in '-imitation' and '-state-probe' ask other questions "
    "of the same rows.",
)
# Of an F test, two-sided at 5%, on the variances of three seeds each.
F_RATIO = 39.0
VARIANCE_NOTE = (
    "Said of Table {number}, too, but no claim that could be judged: that the method's returns "
    "vary less than those of the loss without it. Two variances of three trials each differ "
    "significantly (F test, two-sided, 5%) when one is {ratio:g} times the other; the printed ones "
    "of CURL are {low:.1f} to {high:.1f} times those with the method. At three seeds it cannot be "
    "tested, here or there."
)


def _variance_note(published: Published, row: str) -> str:
    """What the printed deviations of three seeds can say of a row's variance beside CURL's."""
    ratios = [
        (base.std / with_it.std) ** 2
        for base, with_it in zip(published.rows["CURL"], published.rows[row], strict=True)
        if base and with_it and base.std and with_it.std
    ]
    return VARIANCE_NOTE.format(
        number=published.source.rpartition(" ")[2], ratio=F_RATIO, low=min(ratios), high=max(ratios)
    )


PROBE_NOTES = (
    LABEL_NOTE,
    "An additional question. A uniformly random policy plays 100 episodes of 20 "
    "decisions, on whose 2000 stacks of frames the encoder is trained by the contrastive step "
    "alone, and 25 further episodes, held out. Ridge regression from q of the centre crop to the "
    "task's own observation (positions, velocities) is fitted on the former and scored on the "
    "latter: the number is the mean R^2 over the entries of that observation; below, over its "
    "positions and over its velocities alone.",
    "500 updates of batch 64 in place of 512, under autocast: every stack is seen 16 times, and "
    "penalties that add over the batch weigh an eighth of what they do at 512. "
    "Encoder, frames, crops, learning rates and the double step are those of the paper tier.",
    "A seed decides frames, initialisation and batches. All rows of a seed share their frames, so "
    "that the seed is a factor of the model.",
    "It says how much of the physics state an encoder holds after few updates, and nothing about "
    "returns: frames are a random policy's, and neither reward nor actor nor critic takes part.",
    "Batch, updates and the numbers of episodes were set after trials with a seed that no table "
    "has (CURL, raw pixels and the untrained encoder on two tasks), before any of these runs.",
    "Closed: much of what a seed changes here are the frames. The second version of the probe, "
    "beside the returns of the table that ends in '-imitation', has one set of an expert's frames.",
    SILENT_NOTE,
)
CLLR_PROBE_NOTE = (
    "The regression reads q, as actor and critic do, not L q; the norm over the batch stays "
    "alpha = 10 / 512."
)


def _returns(
    paper: str,
    name: str,
    by: str,
    rows: tuple[Row, ...],
    method: str,
) -> Table:
    """The table ``name`` of a paper: returns at 100K environment steps.

    ``method`` is the printed row whose deviations are held against CURL's.
    """
    printed_as = name.replace("-", " ").capitalize()
    published = load_published(PUBLISHED / f"{paper}.toml", name)
    return Table(
        domain="rl",
        paper=paper,
        name=name,
        title="DeepMind Control from pixels, returns at 100K environment steps",
        section=f"{by}, {printed_as}",
        metric="return",
        unit="points of 1000",
        protocol="dmc-return-v1",
        config=Config(),
        rows=rows,
        columns=COLUMNS,
        seeds=SEEDS,
        published=published,
        varies="seed (initialisation, batches, actions, episodes of training and of evaluation)",
        references=tuple(
            load_published(PUBLISHED / "references.toml", key)
            for key in ("curl-100k", "curl-500k", "curl-issue-15", "curl-rerun", "drq")
        ),
        notes=(*NOTES, _variance_note(published, method)),
        aggregates=("interquartile mean",),
    )


def _probe(returns: Table, notes: tuple[str, ...] = ()) -> Table:
    """The probe of the rows of ``returns`` that train an encoder by contrast."""
    asked_of = f"asked of the rows of {returns.section}"
    left_out = (*CONTROLS, BATCH_128_ROW)
    rows = (
        Row(
            "raw pixels",
            {"probe_input": "pixels", "train": False},
            deviation="No encoder: the regression reads the pixels of the centre crop.",
        ),
        Row(
            "untrained encoder",
            {"train": False},
            deviation="As initialised; what contrast adds is measured from here.",
        ),
        *(
            dataclasses.replace(
                row, published=None, deviation=CONTRAST if row == CURL_ROW else row.deviation
            )
            for row in returns.rows
            if row not in left_out
        ),
    )
    return Table(
        domain="rl",
        paper=returns.paper,
        name=f"{returns.name}-state-probe",
        title="DeepMind Control from pixels, physics state read from the embedding",
        section=f"ours, {asked_of}",
        metric="r2",
        unit="% of variance",
        protocol="state-probe-v1",
        config=ProbeConfig(),
        rows=rows,
        columns=PROBE_COLUMNS,
        seeds=PROBE_SEEDS,
        published=Published(
            source=f"A question of this suite, {asked_of}",
            title="Physics state read from the embedding",
            columns=(),
            rows={},
        ),
        short={"batch_size": 64, "precision": "bfloat16"},
        varies="seed (frames, initialisation, batches)",
        blocked=True,
        notes=(*PROBE_NOTES, *notes),
        also=("r2_position", "r2_velocity"),
    )


# Soft actor-critic on states needs more decisions than the 15,000 of Swingup and Catch here.
SLOW_TO_LEARN = ("Spin", "Easy", "Run", "Walk")
# 40 seconds of a core beside the episodes of the evaluation, whose decisions take 10 ms each, as
# measured on Swingup; the first cell of a task trains its expert and draws its frames, 3 minutes,
# of those slow to learn 10.
IMITATION_COLUMNS = tuple(
    dataclasses.replace(
        each,
        changes={
            **each.changes,
            **({"expert_decisions": 60_000} if each.label in SLOW_TO_LEARN else {}),
        },
        minutes=round((40 + 100 / each.changes["action_repeat"]) / 60, 1),
        gigabytes=1.5,
    )
    for each in COLUMNS
)
# Floors and ceiling of the imitation returns.
WITHOUT_CONTRAST = (
    Row(
        "random actions",
        {"train": False, "acts": "random"},
        deviation="Uniformly random; without an encoder.",
        baseline=True,
    ),
    Row(
        "raw pixels",
        {"train": False, "probe_input": "pixels"},
        deviation="No encoder: as many principal components of the centre crop's pixels as the "
        "embedding is wide, each of unit variance; the same head on them.",
        baseline=True,
    ),
    Row(
        "untrained encoder",
        {"train": False},
        deviation="As initialised; what contrast adds is measured from here.",
        baseline=True,
    ),
    Row(
        "state expert",
        {"train": False, "acts": "expert"},
        deviation="Whom the heads imitate, from the physics state; the most that is to be had.",
    ),
)
IMITATION_SEEDS: dict[Tier, tuple[int, ...]] = {
    "paper": (),
    "short": tuple(range(4)),
    "smoke": (0,),
}
# Of these rows no claim speaks: they have fewer seeds, on the task where contrast was first seen to
# act.
UNCLAIMED = ("CURL, single step", "DCL, raw scores", "HCL, raw scores", "margins", "MMCL")
UNCLAIMED_ON = ("Catch",)
# Where a row without the method lies below a trivial baseline, as measured: there the method is not
# run, but for the rows that had run on all six tasks before that was decided.
BELOW_A_FLOOR = {
    "CURL": ("Spin", "Swingup", "Run", "Walk", "Catch"),
    "CURL, cosine": ("Spin", "Swingup", "Run"),
    "DCL": ("Spin", "Swingup", "Run"),
    "HCL": ("Spin", "Swingup", "Run", "Walk"),
}
ON_ALL_TASKS = ("LMCL(CURL+DP)", "LMCL(DCL+DP)", "LMCL(HCL+DP)")
READ = ("action_r2", "r2", "r2_position", "r2_velocity")
IMITATION_NOTES = (
    LABEL_NOTE,
    "An additional question. Soft actor-critic learns each task from the physics "
    "state: 15,000 decisions on Swingup and Catch, 60,000 elsewhere, with an update each, two to "
    "eight minutes of a CPU core; its policy is kept at three levels of skill, where an evaluation "
    "first reaches a third, two thirds and the whole of the best. Each plays 12 episodes with its "
    "noise, of which the first 125 decisions are drawn: 4500 frames; 4 more of each, 1500 frames, "
    "are held out. They are the same for all seeds and rows.",
    "Each row trains its encoder, with half of CURL's filters, on these frames by the contrastive "
    "step alone, 500 updates of batch 64, without rewards or actions. A head of two hidden layers "
    "on the frozen q of the centre crop is fitted by least squares to what the best policy would "
    "do in each frame. The number is the return of that head's policy in the environment, mean "
    "over 10 episodes.",
    "action_r2, below: R^2 of the head's actions on the held-out frames, against the expert's. A "
    "policy that errs drifts to where nobody showed it what to do, so that a return can turn the "
    "order of two weak heads round; where the two metrics differ in sign, it is said.",
    "r2, below: the second version of the state probe, of the same encoder: R^2 of the physics "
    "state on the held-out frames, every third of them, by the regression of state-probe-v1.",
    "A seed decides initialisation, batches, the head's random numbers and the episodes of the "
    "evaluation, the last two alike for all rows: differences between rows are paired.",
    "Said before the runs, of a pilot on Swingup with seeds that no table has: a head on the state "
    "itself reaches 854 with these frames, the expert 857; one on raw pixels 192, on the untrained "
    "encoder 230 and 244 (two seeds), on CURL 167 and 216, on CURL with cosines 216. What is "
    "lacking is in the features: action_r2 is 36; 22 and 23; 42 and 40; 39 there. These encoders "
    "had all of CURL's filters; with half of them the untrained one has 221 and 17, CURL 198 and "
    "38, after four times the updates 196 and 40. Returns of heads so weak may not tell rows apart "
    "on this task.",
    "Declared anew before any run of it was counted: half the filters in place of all, four seeds "
    "in place of eight (two in place of four where no claim speaks of a row), and so a larger gain "
    "to be seen, for a third of the core-hours.",
    "Declared anew a second time, after the floors and the printed rows of LMCL's table had run "
    "with experts of 15,000 decisions on every task: those of Spin, Easy, Run and Walk returned "
    "117, 317, 122 and 301, so that there was hardly anything between floor and expert to be seen, "
    "and rows lay anywhere from 10 to 189. These cells are replaced; those of Swingup and Catch, "
    "whose experts return 857 and 950, stand. Chosen on CURL and floors with seeds that no table "
    "has. Spin, expert 956: a head on the state 667, on raw pixels 714, on the untrained encoder "
    "568, on CURL 538, after four times the updates 674; Run, expert 420: 404, 322, 209, 275 and "
    "283. So experts changed, updates did not.",
    "A row with a method is left out where the row without it lies below a trivial baseline. "
    "Decided when Swingup and Catch had run in part. Rows of which no claim speaks run on Catch "
    "alone.",
    "Frames are drawn without multisampling and with coarser shadows (quality 'fast').",
    "Penalties that add over the batch weigh an eighth of what they do at 512.",
    SILENT_NOTE,
)


def _imitation(
    returns: Table,
    comparisons: Sequence[tuple[str, str]],
    notes: tuple[str, ...] = (),
) -> Table:
    """Imitation returns of the rows of ``returns`` that train an encoder by contrast."""
    asked_of = f"asked of the rows of {returns.section}"
    left_out = (*CONTROLS, BATCH_128_ROW)
    unasked = {
        better: BELOW_A_FLOOR.get(than, ())
        for better, than in comparisons
        if better not in ON_ALL_TASKS
    }
    return Table(
        domain="rl",
        paper=returns.paper,
        name=f"{returns.name}-imitation",
        title="DeepMind Control from pixels, an expert imitated from the embedding",
        section=f"ours, {asked_of}",
        metric="return",
        unit="points of 1000",
        protocol="imitation-return-v1",
        config=ImitationConfig(),
        rows=(
            *WITHOUT_CONTRAST,
            *(
                dataclasses.replace(
                    row, published=None, deviation=CONTRAST if row == CURL_ROW else row.deviation
                )
                for row in returns.rows
                if row not in left_out
            ),
        ),
        columns=IMITATION_COLUMNS,
        seeds=IMITATION_SEEDS,
        published=Published(
            source=f"A question of this suite, {asked_of}",
            title="Imitation returns",
            columns=(),
            rows={},
        ),
        varies="seed (initialisation, batches, head, episodes of evaluation)",
        notes=(*IMITATION_NOTES, *notes),
        also=READ,
        units=dict.fromkeys(READ, "% of variance"),
        aggregates=("interquartile mean",),
        fewer=(
            *(
                Seeds(seeds, columns, (row.label,), ("short",))
                for row in returns.rows
                if row.label in UNCLAIMED
                for seeds, columns in (
                    ((0, 1), UNCLAIMED_ON),
                    ((), tuple(label for label in LABELS if label not in UNCLAIMED_ON)),
                )
            ),
            *(
                Seeds((), columns, (label,), ("short",))
                for label, columns in unasked.items()
                if columns
            ),
        ),
    )


TABLE_5 = _returns(
    "lmcl",
    "table-5",
    "Chen et al. 2021 (LMCL)",
    LMCL_ROWS,
    "LMCL(CURL+DP)",
)
TABLE_5_PROBE = _probe(TABLE_5)
TABLE_5_IMITATION = _imitation(
    TABLE_5,
    LMCL_COMPARISONS,
)
TABLE_4 = _returns(
    "cllr",
    "table-4",
    "Chen et al. 2022 (CLLR)",
    CLLR_ROWS,
    "CLLR(CURL+)",
)
TABLE_4_PROBE = _probe(TABLE_4, (CLLR_PROBE_NOTE,))
TABLE_4_IMITATION = _imitation(
    TABLE_4,
    CLLR_COMPARISONS,
    ("Head and regression read q, as actor and critic do, not L q.",),
)

# Until an agent from pixels is seen to learn, no return of this domain says anything.
LEARNING_GATE = Table(
    domain="rl",
    paper="curl",
    name="learning-gate",
    title="Does an agent from pixels learn at all?",
    section="ours, asked of the agent of Laskin et al. 2020 (CURL)",
    metric="return",
    unit="points of 1000",
    protocol="dmc-return-v1",
    config=Config(),
    rows=(
        CONTROLS[0],
        Row(
            GATE_LABEL,
            ON_A_CPU,
            deviation="The network of the paper tier; the batch of the published command of CURL's "
            "program; convolutions in bfloat16, which takes 0.4 to 0.5 of float32's time on a CPU "
            "with bfloat16 instructions.",
        ),
    ),
    columns=(dataclasses.replace(COLUMNS[1], minutes=200.0, gigabytes=2.0),),
    seeds={"paper": (), "short": (0,), "smoke": (0,)},
    published=Published(
        source="A question of this suite",
        title="Return at 100K environment steps",
        columns=(),
        rows={},
    ),
    varies="seed (initialisation, batches, actions, episodes of training and of evaluation)",
    references=(load_published(PUBLISHED / "references.toml", "curl-rerun"),),
    notes=(
        "One seed: it is asked whether an agent learns, not how much. A threshold of 340 was set "
        "before the run: about 571, a rerun's mean over seeds, less twice its deviation of 117.",
        "Said after the run: it ended at 348.7. Its ten evaluations are 25, 198, "
        "195, 200, 275, 276, 289, 302, 282 and 349: still rising when its steps were over, and "
        "short of the 446 to 678 of the three seeds of the rerun below.",
    ),
)

CLLR_LABEL = "CLLR(CURL+nuclear-norm), norm over batch"
RETURNS_ON_A_CPU = Table(
    domain="rl",
    paper="curl",
    name="returns-on-a-cpu",
    title="DeepMind Control from pixels, mean return from 20K to 100K environment steps",
    section="ours, asked of rows of LMCL's Table 5 and CLLR's Table 4",
    metric="mean_return",
    unit="points of 1000",
    protocol="dmc-return-v2",
    config=Config(protocol="dmc-return-v2"),
    rows=(
        dataclasses.replace(CONTROLS[0], baseline=True),
        CONTROLS[1],
        dataclasses.replace(CURL_ROW, published=None, deviation=CONTRAST),
        *(
            dataclasses.replace(row, published=None)
            for row in LMCL_ROWS
            if row.label in ("LMCL(CURL+DP)", "LMCL(DCL+DP)")
        ),
        Row(
            CLLR_LABEL,
            _low_rank(RAW, "bilinear", norm="nuclear", alpha=ALPHA / ON_A_CPU["batch_size"]),
            deviation=f"{SAID['nuclear']} {OF_50} The norm of L divided by the batch size "
            "(alpha = 10 / 128), as the authors' image program divides what it penalises: the "
            "printed alpha may leave little of L.",
        ),
    ),
    # As the learning gate took on a core; Catch has 24,000 updates where Swingup has 11,500.
    columns=tuple(
        dataclasses.replace(column, minutes=minutes, gigabytes=2.0)
        for column, minutes in ((COLUMNS[1], 146.0), (COLUMNS[5], 305.0))
    ),
    seeds={"paper": (), "short": tuple(range(8)), "smoke": (0,)},
    published=Published(
        source="A question of this suite",
        title="Mean return from 20K to 100K environment steps",
        columns=(),
        rows={},
    ),
    short=ON_A_CPU,
    varies="seed (initialisation, batches, actions, episodes of training and of evaluation)",
    references=(load_published(PUBLISHED / "references.toml", "curl-rerun"),),
    notes=(
        LABEL_NOTE,
        "The network of the paper tier, batches of 128 as in the published command of CURL's "
        "program, convolutions in bfloat16: the agent of the learning gate. The number is the mean "
        "over the evaluations at 20K, 30K and so on to 100K environment steps; the last one alone "
        "stands below.",
        "It can see contrast against none. It cannot see what LMCL prints of Swingup, 682 against "
        "680: a gain of 2 at a rerun's deviations of 117 and 126 over seeds takes some 58,000 "
        "seeds of each row.",
    ),
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
