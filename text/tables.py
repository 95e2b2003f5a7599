"""The text tables of the papers as data; their prose is in ``published/notes.toml``.

Each is declared at paper scale on public-domain books, which are freely available, and on your own
copy of BookCorpus, which the papers train on and which cannot be distributed; and at a budget of
one CPU core (``-small``). In a first reduced setting, bags of words were so wide (200 dimensions)
that training made little difference; its records are kept in closed tables, which no claim uses.
"""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shared import term
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
from shared.experiment.tables import Column, Published, Row, Seeds, Table
from shared.lazy import debiased_nce, margin_nce
from text.config import QUICK_THOUGHTS, Config

PUBLISHED = Path(__file__).parent / "published"
NOTES = load_notes(PUBLISHED / "notes.toml")
row = NOTES.row

# Changes of the first reduced setting, as in its records.
CLOSED: dict[str, Any] = {
    "encoder": "bag_of_words",
    "embedding": 200,
    "vocabulary": 20_000,
    "lower_case": True,
    "order": "shuffled",
    "epochs": 2,
}
# Changes of the reduced scale. At this width a bag of words shows what training adds; 5e-3 is for
# cosine similarity.
SMALL: dict[str, Any] = {
    "encoder": "bag_of_words",
    "embedding": 50,
    "vocabulary": 20_000,
    "lower_case": True,
    "held_out": 6,
    "order": "shuffled",
    "learning_rate": 5e-3,
}
# Learning rate of the rows on raw inner products, by the rule of text_budget.py (dba64e36).
RAW_RATE = 5e-4

# Quick-thought's single epoch in batches of 400, over 45.8 million sentences; and as many steps on
# the books, where an epoch has about 836,000 sentences, 2,090 steps.
BOOKCORPUS_STEPS = 114_466
BOOKS_EPOCHS = 55

# Columns, all from one run, and their metrics.
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
# Columns for SUBJ and MPQA read as swapped, and the label under which their numbers are printed.
PRINTED_AS = {"SUBJ (printed as MPQA)": "MPQA", "MPQA (printed as SUBJ)": "SUBJ"}
# Claims are judged on these: each task once.
JUDGED = ("MR", "CR", *PRINTED_AS, "TREC", "MSRP")
SMALL_METRICS = {
    **{label: METRICS[label] for label in (*JUDGED, "MSRP F1")},
    "mean of the tasks": "mean",
    "mean without TREC": "mean_without_TREC",
    "next sentence": "next_sentence",
}

QT = QUICK_THOUGHTS.loss  # on raw scores
BASES = {"QT": (QT, "inner_product"), "DCL": (DCL, "cosine"), "HCL": (HCL, "cosine")}


def _cllr(
    base: str, norm: str, notes: str, over_batch: bool = True, published: str | None = None
) -> Row:
    loss, similarity = BASES[base]
    alpha = ALPHA / Config().batch_size if over_batch else ALPHA
    which = "over-batch" if over_batch else "printed-alpha"
    return row(
        f"CLLR({base}+{norm}-norm){OVER_BATCH if over_batch else ''}",
        {
            **trained_with(loss, projection=low_rank(norm, alpha), similarity=similarity),
            "normalise_projected": True,
        },
        f"{notes} of-both {which} selected-{norm}",
        published=published,
    )


TRIVIAL = (
    row("majority class", {"baseline": "majority"}, "majority", seeds=(0,), baseline=True),
    row("tf-idf unigrams", {"baseline": "tfidf"}, "tf-idf", seeds=(0,), baseline=True),
    row("untrained encoder", {"train": False}, "untrained", baseline=True, untrained=True),
)
PPMI_ROW = row("PPMI-SVD", {"baseline": "ppmi_svd"}, "ppmi-svd", seeds=(0,), baseline=True)
# Rows of both papers.
QT_ROW = row("QT", {}, "masked", published="QT")
COSINE_ROWS = tuple(
    row(label, trained_with(loss, similarity="cosine"), notes, published=published)
    for label, loss, published, notes in (
        ("QT, cosine", NCE, "QT", "masked cosines cosine-base"),
        ("DCL", DCL, "DCL", "cosines debiased"),
        ("HCL", HCL, "HCL", "cosines hardened"),
    )
)

LMCL_ROWS = (
    *TRIVIAL,
    QT_ROW,
    row("QT, authors' zero diagonal", {"diagonal": "zero"}, "zero-diagonal", published="QT"),
    *COSINE_ROWS,
    polarized_row("LMCL(QT+DP)", *BASES["QT"], NOTES.text("masked anchor-sum")),
    polarized_row("LMCL(QT+DP), mean", *BASES["QT"], NOTES.text("masked mean"), reduction="mean"),
    polarized_row("LMCL(QT+DP), cosine", NCE, "cosine", NOTES.text("masked cosines anchor-sum")),
    *(
        polarized_row(
            f"LMCL({base}+DP){ending}",
            *BASES[base],
            NOTES.text(f"as-{base.lower()} {reduction.replace('_', '-')}"),
            reduction,
        )
        for base in ("DCL", "HCL")
        for ending, reduction in (("", "anchor_sum"), (", mean", "mean"))
    ),
    row(
        "DCL, raw scores",
        trained_with(term(debiased_nce, temperature=1.0, tau_plus=0.01, floor="minimum")),
        "raw-scores",
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
    *TRIVIAL,
    QT_ROW,
    *COSINE_ROWS,
    *(
        _cllr("DCL", norm, "as-dcl", over_batch=over_batch, published=f"CLLR(DCL+{norm}-norm)")
        for over_batch in (False, True)
        for norm in NORMS
    ),
    *(_cllr("QT", norm, "no-such-row masked") for norm in NORMS),
)


def _columns(metrics: Mapping[str, str]) -> tuple[Column, ...]:
    return tuple(Column(label, metric=of, run="six tasks") for label, of in metrics.items())


def _both_readings(published: Published) -> Published:
    """``published`` with the columns of ``PRINTED_AS`` added, which repeat published numbers."""
    return dataclasses.replace(
        published,
        columns=(*published.columns, *PRINTED_AS),
        rows={
            label: (*values, *(published.value(label, name) for name in PRINTED_AS.values()))
            for label, values in published.rows.items()
        },
    )


def _at_small_rate(declared: Row) -> Row:
    """A row at reduced scale, where raw inner products have their own learning rate."""
    if declared.baseline or declared.changes.get("similarity") == "cosine":
        return declared
    return dataclasses.replace(declared, changes={**declared.changes, "learning_rate": RAW_RATE})


def _not_normalised(declared: Row) -> Row:
    """A row as it was run in the earlier setting: CLLR's L [f ; g] had any length."""
    changes = {k: v for k, v in declared.changes.items() if k != "normalise_projected"}
    return dataclasses.replace(declared, changes=changes)


def _tables(
    paper: str,
    name: str,
    by: str,
    rows: tuple[Row, ...],
    *,
    never_closed: tuple[str, ...],
    closed_once: tuple[str, ...],
    notes: str = "",
    closed_notes: str = "",
) -> tuple[Table, Table, Table, Table]:
    """A paper's table on the books, and what derives from it: BookCorpus and both reduced settings.

    never_closed, closed_once: rows that the first reduced setting never ran, and ran with one seed.
    notes, closed_notes: further ones at paper scale, and in that setting.
    """
    published = _both_readings(load_published(PUBLISHED / f"{paper}.toml", name))
    title = "Quick-thought on {}, six text tasks"
    in_common = "other-than-program fixed ten-fold"
    at_paper_scale = f"exchanged left-open {in_common} seeds {notes}"
    books = Table(
        domain="text",
        paper=paper,
        name=name,
        title=title.format("public-domain books"),
        section=f"{by}, {name.replace('-', ' ').capitalize()}",
        metric="mean",
        unit="%",
        protocol=Config().protocol,
        config=Config(epochs=BOOKS_EPOCHS, steps=BOOKCORPUS_STEPS),
        rows=rows,
        columns=_columns(METRICS),
        seeds={"paper": (0, 1, 2), "smoke": (0,)},
        published=published,
        varies="seed (initialisation and order of batches); folds are the same for every seed",
        notes=NOTES.lines(f"books {at_paper_scale}"),
    )
    bookcorpus = dataclasses.replace(
        books,
        name=f"{name}-bookcorpus",
        title=title.format("BookCorpus"),
        config=Config(corpus="bookcorpus", layout="sentences", steps=BOOKCORPUS_STEPS),
        notes=NOTES.lines(f"bookcorpus {at_paper_scale}"),
    )
    reduced = tuple(map(_at_small_rate, rows))
    small_scale = dataclasses.replace(
        books,
        name=f"{name}-small",
        title=title.format("public-domain books at a CPU's budget"),
        config=Config(),
        rows=(*reduced[: len(TRIVIAL)], PPMI_ROW, *reduced[len(TRIVIAL) :]),
        columns=_columns(SMALL_METRICS),
        seeds={"short": tuple(range(10)), "smoke": (0,)},
        published=published.part(JUDGED),
        short=SMALL,
        notes=NOTES.lines(
            f"books-small exchanged {in_common} small-setting small-rates small-next "
            "small-trivial small-declared small-projection"
        ),
        also=("previous_sentence",),
    )
    # Its records have the addresses of the paper scale.
    closed = dataclasses.replace(
        books,
        title=f"{books.title}: an earlier setting, closed",
        protocol="skip-thoughts-nested-10fold-v1",
        config=Config(protocol="skip-thoughts-nested-10fold-v1"),
        rows=tuple(map(_not_normalised, (r for r in rows if r.label not in never_closed))),
        seeds={"short": (0, 1, 2)},
        seed_exceptions=(Seeds((0,), rows=closed_once, tiers=("short",)),),
        short=CLOSED,
        notes=NOTES.lines(f"closed closed-setting exchanged {in_common} {closed_notes}"),
    )
    return books, bookcorpus, small_scale, closed


LMCL_TABLES = _tables(
    "lmcl",
    "table-4",
    "Chen et al. 2021 (LMCL)",
    LMCL_ROWS,
    never_closed=(
        "LMCL(QT+DP), mean",
        "LMCL(DCL+DP), mean",
        "LMCL(HCL+DP), mean",
        "DCL, raw scores",
        "margins",
        "MMCL",
    ),
    closed_once=("QT, authors' zero diagonal",),
)
CLLR_TABLES = _tables(
    "cllr",
    "table-2",
    "Chen et al. 2022 (CLLR)",
    CLLR_ROWS,
    never_closed=tuple(f"CLLR(QT+{norm}-norm){OVER_BATCH}" for norm in NORMS),
    closed_once=("CLLR(DCL+nuclear-norm)", f"CLLR(DCL+nuclear-norm){OVER_BATCH}"),
    notes="nuclear",
    closed_notes="collapse",
)
TABLE_4, TABLE_4_BOOKCORPUS, TABLE_4_SMALL, TABLE_4_CLOSED = LMCL_TABLES
TABLE_2, TABLE_2_BOOKCORPUS, TABLE_2_SMALL, TABLE_2_CLOSED = CLLR_TABLES

TABLES = with_claims({"lmcl": LMCL_TABLES, "cllr": CLLR_TABLES}, PUBLISHED / "claims.toml")
