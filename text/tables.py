"""The text tables of the papers as data.

Each is declared twice: on public-domain books, which everybody has, and on the user's own copy of
BookCorpus, which the papers train on and which cannot be distributed.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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
from shared.experiment.tables import Claim, Column, Published, Row, Table, Tier, load_published
from text.config import QUICK_THOUGHTS, TASKS, Config

PUBLISHED = Path(__file__).parent / "published"

# Ours, fixed before any run: the papers print none of these for text.
TEMPERATURE = 0.1
TAU_PLUS = 0.01
BETA = 1.0

QT = QUICK_THOUGHTS.loss  # of raw scores
NCE = term(info_nce, temperature=TEMPERATURE)
DCL = term(debiased_nce, temperature=TEMPERATURE, tau_plus=TAU_PLUS)
HARD = term(hard_nce, temperature=TEMPERATURE, tau_plus=TAU_PLUS, beta=BETA)

ALPHA = 10.0  # printed
OVER = ", norm over batch"
NORMS = (("l21-norm", "l21"), ("nuclear-norm", "nuclear"))

SEEDS: dict[Tier, tuple[int, ...]] = {"paper": (0,), "short": (0, 1, 2), "smoke": (0,)}
VARIES = "seed (initialisation and order of batches); folds are the same for every seed"
SHORT: dict[str, Any] = {
    "encoder": "bag_of_words",
    "embedding": 200,
    "vocabulary": 20_000,
    "lower_case": True,
    "order": "shuffled",
    "epochs": 2,
}

# One epoch in batches of 400: of some 836,000 sentences; quick-thought's, of 45.8 million.
BOOKS_STEPS = 2_090
BOOKCORPUS_STEPS = 114_466

RUN = "six tasks"
# The metric of each column.
METRICS = {
    "MR": "MR",
    "CR": "CR",
    "SUBJ": "SUBJ",
    "SUBJ (printed as MPQA)": "SUBJ",
    "MPQA": "MPQA",
    "MPQA (printed as SUBJ)": "MPQA",
    "TREC": "TREC",
    "MSRP": "MSRP",
    "MSRP F1": "MSRP_f1",
}
# The columns that read SUBJ and MPQA as exchanged, and under which label their numbers are printed.
PRINTED_AS = {"SUBJ (printed as MPQA)": "MPQA", "MPQA (printed as SUBJ)": "SUBJ"}


def with_exchanged(published: Published) -> Published:
    """``published`` with the columns of ``PRINTED_AS``, which take the numbers of printed ones."""
    return dataclasses.replace(
        published,
        columns=(*published.columns, *PRINTED_AS),
        rows={
            label: (*values, *(published.value(label, name) for name in PRINTED_AS.values()))
            for label, values in published.rows.items()
        },
    )


def _polarized(loss: Term, similarity: str, reduction: str = "anchor_sum") -> dict[str, Any]:
    # lambda = 0.1, delta+ = 0.1 and delta- = 0.5 are printed.
    penalty = term(distance_polarization, weight=0.1, lower=0.1, upper=0.5, reduction=reduction)
    return {"objective": Objective(loss, (penalty,)), "similarity": similarity}


def _low_rank(loss: Term, similarity: str, norm: str, alpha: float) -> dict[str, Any]:
    # lambda = 0.1 is printed.
    projection = Projection(0.1, {"norm": norm, "alpha": alpha})
    return {"objective": Objective(loss, projection=projection), "similarity": similarity}


def _cosine(loss: Term) -> dict[str, Any]:
    return {"objective": Objective(loss), "similarity": "cosine"}


MASKED = (
    "A sentence's score with itself is left out of the softmax, where quick-thought's program "
    "keeps it as the constant 0."
)
COSINES = (
    f"Cosines over a temperature of {TEMPERATURE:g}, where quick-thought has raw inner products: "
    "DCL, HCL and margins need bounded scores. No paper prints a temperature for text."
)
DEBIASED = f"tau+ = {TAU_PLUS:g} is not printed for text; the two positives are averaged."
HARDENED = f"beta = {BETA:g} is not printed for text, and neither is tau+ = {TAU_PLUS:g}."
ANCHOR_SUM = (
    "How Eq. 10 adds the pairs up is not determined: here over the pairs of an anchor, then the "
    "mean over anchors. Pairs are f of one sentence and g of another; neighbours are left out."
)
MEAN = (
    "Eq. 10 read as the mean over all negative pairs: the penalty is smaller by the number of an "
    "anchor's negatives."
)
OF_BOTH = (
    "L works on the unnormalised [f ; g] of both encoders, started as the identity; the paper has "
    "one encoder and does not say. L [f ; g] is evaluated, of 256 dimensions."
)
# A direction of mean square e and singular value s of L costs alpha s + e (1 - s^2)^2, and e when L
# drops it: L keeps it only where e > alpha / max(2 s - s^3) = 0.919 alpha. The l2,1 norm is no
# smaller than the nuclear norm.
PRINTED_ALPHA = (
    "alpha = 10 as printed: L keeps a direction of [f ; g] only where its mean square exceeds "
    "9.2, and a loss of cosines lets features shrink, so that L may lose all of them; a warning "
    "says when it has."
)
OVER_BATCH = (
    "The norm of L divided by the batch size (alpha = 10 / 400), as the authors' image program "
    "divides what it penalises: our reading, since the printed alpha may leave nothing of L."
)
SELECTED = {
    "l21": "The columns of largest norm are kept.",
    "nuclear": "The largest singular values are kept; the paper's footnote speaks of a maximal "
    "independent set of columns.",
}

# Rows of both papers.
BASELINES = (
    Row(
        "majority class",
        {"baseline": "majority"},
        deviation="Printed by no paper: what a task's most frequent class gives.",
        seeds=(0,),
    ),
    Row(
        "tf-idf unigrams",
        {"baseline": "tfidf"},
        deviation="Printed by no paper: no encoder, the same classifier on words alone.",
        seeds=(0,),
    ),
    Row(
        "untrained encoder",
        {"train": False},
        deviation="Printed by no paper; what pretraining adds is measured from here.",
    ),
)
QT_ROW = Row("QT", published="QT", deviation=MASKED)
QT_COSINE_ROW = Row(
    "QT, cosine",
    _cosine(NCE),
    published="QT",
    deviation=f"{MASKED} {COSINES} The base from which the other rows of cosines are measured.",
)
FAMILY = (
    Row("DCL", _cosine(DCL), published="DCL", deviation=f"{COSINES} {DEBIASED}"),
    Row("HCL", _cosine(HARD), published="HCL", deviation=f"{COSINES} {HARDENED}"),
)

LMCL_ROWS = (
    *BASELINES,
    QT_ROW,
    Row(
        "QT, authors' zero diagonal",
        {"diagonal": "zero"},
        published="QT",
        deviation="As quick-thought's program has it: a sentence's score with itself is set to 0 "
        "and stays in the softmax.",
    ),
    QT_COSINE_ROW,
    *FAMILY,
    Row(
        "LMCL(QT+DP)",
        _polarized(QT, "inner_product"),
        published="LMCL(QT+DP)",
        deviation=f"{MASKED} {ANCHOR_SUM}",
    ),
    Row(
        "LMCL(QT+DP), mean",
        _polarized(QT, "inner_product", "mean"),
        published="LMCL(QT+DP)",
        deviation=f"{MASKED} {MEAN}",
    ),
    Row(
        "LMCL(QT+DP), cosine",
        _polarized(NCE, "cosine"),
        published="LMCL(QT+DP)",
        deviation=f"{MASKED} {COSINES} {ANCHOR_SUM}",
    ),
    *(
        Row(
            f"LMCL({base}+DP){suffix}",
            _polarized(loss, "cosine", reduction),
            published=f"LMCL({base}+DP)",
            deviation=f"Cosines and numbers of {base} as in its row. {reading}",
        )
        for base, loss in (("DCL", DCL), ("HCL", HARD))
        for suffix, reduction, reading in (("", "anchor_sum", ANCHOR_SUM), (", mean", "mean", MEAN))
    ),
    Row(
        "DCL, raw scores",
        {
            "objective": Objective(
                term(debiased_nce, temperature=1.0, tau_plus=TAU_PLUS, floor="minimum")
            )
        },
        deviation="Raw inner products, for which DCL's lower limit of cosines does not hold: here "
        "the number of negatives times exp of an anchor's lowest score.",
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
        "gamma = 0.5), C = 100. The mean over one support vector machine for each positive.",
    ),
)


def _low_rank_rows() -> tuple[Row, ...]:
    over_batch = ALPHA / Config().batch_size
    printed = tuple(
        Row(
            f"CLLR(DCL+{name}){suffix}",
            _low_rank(DCL, "cosine", norm, alpha),
            published=f"CLLR(DCL+{name})",
            deviation=f"Cosines and numbers of DCL as in its row. {OF_BOTH} {reason} "
            f"{SELECTED[norm]}",
        )
        for suffix, alpha, reason in (("", ALPHA, PRINTED_ALPHA), (OVER, over_batch, OVER_BATCH))
        for name, norm in NORMS
    )
    ours = tuple(
        Row(
            f"CLLR(QT+{name}){OVER}",
            _low_rank(QT, "inner_product", norm, over_batch),
            deviation="The paper's text speaks of improving QT but its table has no such row. "
            f"{MASKED} {OF_BOTH} {OVER_BATCH} {SELECTED[norm]}",
        )
        for name, norm in NORMS
    )
    return (*printed, *ours)


CLLR_ROWS = (*BASELINES, QT_ROW, QT_COSINE_ROW, *FAMILY, *_low_rank_rows())


def _claims(
    table: str, published: Published, rows: Sequence[Row], comparisons: Sequence[tuple[str, str]]
) -> tuple[Claim, ...]:
    """For each two rows, better and worse, what their printed numbers say, column by column."""
    printed = {row.label: row.published for row in rows if row.published is not None}
    claims = []
    for better, than in comparisons:
        columns = tuple(
            name
            for name in METRICS
            if (high := published.value(printed[better], name)) is not None
            and (low := published.value(printed[than], name)) is not None
            and high.mean > low.mean
        )
        but = " and ".join(task for task in TASKS if task not in columns)
        claims.append(
            Claim(
                f"{printed[better]} is above {printed[than]} on every task"
                f"{f' but {but}' if but else ''} (numbers of {table}). Measured: {better} against "
                f"{than}.",
                better=better,
                than=than,
                columns=columns,
                tolerance=0.5,
            )
        )
    return tuple(claims)


# With the same loss without the method; and, beside the printed QT, with the QT of cosines, which
# differs from these rows in less.
LMCL_COMPARISONS = (
    ("LMCL(QT+DP)", "QT"),
    ("LMCL(QT+DP), mean", "QT"),
    ("LMCL(QT+DP), cosine", "QT, cosine"),
    *(
        (f"LMCL({base}+DP){suffix}", than)
        for base in ("DCL", "HCL")
        for suffix in ("", ", mean")
        for than in (base, "QT", "QT, cosine")
    ),
)
CLLR_COMPARISONS = tuple(
    (f"CLLR(DCL+{name}){suffix}", than)
    for suffix in ("", OVER)
    for name, _ in NORMS
    for than in ("DCL", "QT", "QT, cosine")
)
CLLR_IN_WORDS = tuple(
    Claim(
        "CLLR improves QT (text on Table 2, which prints no such row). Measured: "
        f"CLLR(QT+{name}){OVER}.",
        better=f"CLLR(QT+{name}){OVER}",
        than="QT",
        columns=TASKS,
        tolerance=0.5,
    )
    for name, _ in NORMS
)

NOTES = (
    "The printed columns SUBJ and MPQA are almost certainly exchanged: the row 'tf-idf unigrams' "
    "has no encoder and is far above every number printed under SUBJ and far below every number "
    "printed under MPQA. Columns '(printed as ...)' set a task's accuracy beside the numbers that "
    "are printed under the other's label; the claims are judged in both readings.",
    "Everything the papers leave open is as in quick-thought's program: two bidirectional GRUs of "
    "1200 dimensions with embeddings of their own, 400 consecutive sentences a batch, Adam at "
    "5e-4, the gradient of each variable clipped at 5, one epoch.",
    "Other than in that program: context never crosses from one chapter to the next; the "
    "vocabulary is not expanded to the tasks' words, which needs word2vec's vectors; torch's GRU "
    "applies its reset gate after the recurrent product.",
    "Temperature, tau+ and beta were fixed before any run; no program for text of LMCL, CLLR, DCL "
    "or HCL is public.",
    "'Ten-fold' as in quick-thought's evaluation: nested in MR, CR, SUBJ and MPQA; in TREC and "
    "MSRP it chooses C on the training part, and the test part is scored. C of MSRP is chosen by "
    "F1.",
    "One number is printed for each cell, with neither deviation nor number of seeds; one seed "
    "here, more with --seeds. The classifiers of 'majority class' and 'tf-idf unigrams' do not "
    "depend on the seed.",
    "Short tier: both encoders are bags of words of 200 dimensions over the 20,000 most frequent "
    "words, in lower case; batches come in shuffled order, and the books are read twice. It shows "
    "how the rows compare at a CPU's budget, not how far a GRU would get. Between 7 and 13 in "
    "100 of the tasks' words are unknown to it.",
)
COLLAPSE_NOTE = (
    "In the short tier L does collapse under the printed alpha = 10: the l2,1 norm falls from 400 "
    "to 0.2 and the nuclear norm to 0.7 (seed 0), and most tasks fall to the majority class. Over "
    "the batch they end at 175 and 133."
)
NUCLEAR_NOTE = (
    "The nuclear norm takes the singular values of a 2400 x 2400 matrix at every step: 9 seconds "
    "on one CPU core, which the planned minutes leave out."
)


@dataclass(frozen=True)
class Corpus:
    """What a table has by its corpus: name and title, configurations, steps, what is to be said."""

    suffix: str
    title: str
    config: Config
    steps: int
    short: Mapping[str, Any]
    note: str


BOOKS = Corpus(
    suffix="",
    title="Quick-thought on public-domain books, six text tasks",
    config=Config(),
    steps=BOOKS_STEPS,
    short=SHORT,
    note="BookCorpus cannot be distributed. The corpus is 92 public-domain books, some 836,000 "
    "sentences in place of 45.8 million: how rows compare can be held against the papers, the "
    "height of the numbers cannot. The table on the user's own copy ends in '-bookcorpus'.",
)
BOOKCORPUS = Corpus(
    suffix="-bookcorpus",
    title="Quick-thought on BookCorpus, six text tasks",
    config=Config(corpus="bookcorpus", layout="sentences", steps=BOOKCORPUS_STEPS),
    steps=BOOKCORPUS_STEPS,
    # As many batches as of the books, drawn from the whole corpus.
    short={**SHORT, "epochs": 1, "steps": SHORT["epochs"] * BOOKS_STEPS},
    note="BookCorpus cannot be distributed: needs the user's own copy, one sentence a line. "
    "114,466 steps, which are quick-thought's one epoch of 45.8 million sentences.",
)


def _table(
    corpus: Corpus,
    paper: str,
    name: str,
    by: str,
    rows: tuple[Row, ...],
    comparisons: Sequence[tuple[str, str]],
    in_words: tuple[Claim, ...] = (),
    notes: tuple[str, ...] = (),
) -> Table:
    """The table ``name`` of a paper on a corpus."""
    printed = name.replace("-", " ").capitalize()
    published = with_exchanged(load_published(PUBLISHED / f"{paper}.toml", name))
    # On one CPU core; the 9 seconds of a step were measured, the 15 minutes of the tasks were not.
    minutes = corpus.steps * 9 / 60 + 15
    return Table(
        domain="text",
        paper=paper,
        name=f"{name}{corpus.suffix}",
        title=corpus.title,
        section=f"{by}, {printed}",
        metric="mean",
        unit="%",
        protocol="skip-thoughts-nested-10fold-v1",
        config=corpus.config,
        rows=rows,
        columns=tuple(
            Column(label, minutes=minutes, gigabytes=4.0, metric=metric, run=RUN)
            for label, metric in METRICS.items()
        ),
        seeds=SEEDS,
        published=published,
        claims=(*_claims(printed, published, rows, comparisons), *in_words),
        short=corpus.short,
        varies=VARIES,
        notes=(corpus.note, *NOTES, *notes),
    )


def _table_4(corpus: Corpus) -> Table:
    by = "Chen et al. 2021 (LMCL)"
    return _table(corpus, "lmcl", "table-4", by, LMCL_ROWS, LMCL_COMPARISONS)


def _table_2(corpus: Corpus) -> Table:
    by = "Chen et al. 2022 (CLLR)"
    return _table(
        corpus,
        "cllr",
        "table-2",
        by,
        CLLR_ROWS,
        CLLR_COMPARISONS,
        CLLR_IN_WORDS,
        (COLLAPSE_NOTE, NUCLEAR_NOTE),
    )


TABLE_4 = _table_4(BOOKS)
TABLE_4_BOOKCORPUS = _table_4(BOOKCORPUS)
TABLE_2 = _table_2(BOOKS)
TABLE_2_BOOKCORPUS = _table_2(BOOKCORPUS)

TABLES = {"lmcl": (TABLE_4, TABLE_4_BOOKCORPUS), "cllr": (TABLE_2, TABLE_2_BOOKCORPUS)}
