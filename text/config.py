"""The configuration of a text run; each default cites its source.

[QT]: Logeswaran and Lee 2018, whose setting both papers follow, and its program S2V;
[skip-thoughts]: the evaluation scripts of Kiros et al. 2015, which S2V calls.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from shared import Objective, term
from shared.experiment.config import added, option
from shared.experiment.initial import InitialWeights
from shared.lazy import info_nce
from shared.ranges import (
    COUNT,
    NOT_NEGATIVE,
    POSITIVE_OR_INFINITE,
    PROBABILITY,
    STEP,
    Range,
    Use,
    optional,
)

# The plain inner product of f and g, no temperature: the softmax over a batch's sentences.
QUICK_THOUGHTS = Objective(term(info_nce, temperature=1.0))

TASKS = ("MR", "CR", "SUBJ", "MPQA", "TREC", "MSRP")
EMBEDDED_TASKS = ("topics", "questions", "neighbours")
NAMED_CORPORA = ("books", "bookcorpus", "manual")  # own text may not take these names


@dataclass(frozen=True)
class Config:
    """One pretraining run and its evaluation. The defaults are [QT] on public-domain books."""

    # A folder of plain text below the data root. [QT]: "bookcorpus", which cannot be distributed.
    corpus: str = "books"
    # What a line of it is: see text.data.LAYOUTS.
    layout: Literal["paragraphs", "sentences", "wrapped"] = "paragraphs"
    vocabulary: int = 50_001  # [QT], the unknown word included
    lower_case: bool = False  # [QT]
    length: int = 50  # tokens kept of a sentence; [QT], in its preparation of the data

    # Number of books at the beginning of the corpus that are held out, and on which next-sentence
    # accuracy is measured. [QT]'s program validates on the first 50,000 sentences.
    held_out: int = added(0, was=0)

    # [QT]: "gru"; "bag_of_words" is an option of its program.
    encoder: Literal["gru", "bag_of_words", "transformer"] = "gru"
    embedding: int = 620  # [QT]; a bag of words is as wide as its embedding
    hidden: int = 1200  # [QT] encoder_dim, both directions of the GRU together
    bidirectional: bool = True  # [QT]
    # Share of the dimensions of f and g that are dropped in a step, the same ones for all sentences
    # and both encoders, without rescaling. [QT]'s program has it off; its value when on is 0.3.
    dropout: float = added(0.0, was=0.0)
    layers: int = 2  # of the transformer, which no paper uses
    heads: int = 4  # likewise

    # What training starts from instead of random weights, with its own shape and tokenizer; the
    # SHA-256 alone is recorded.
    init: InitialWeights | None = option(None)  # noqa: RUF009 (a field)
    objective: Objective = QUICK_THOUGHTS
    similarity: Literal["inner_product", "cosine"] = "inner_product"  # [QT]
    # A sentence's score with itself: masked out, or the constant 0 in each denominator, as in
    # [QT]'s program.
    diagonal: Literal["masked", "zero"] = "masked"
    reach: int = 1  # neighbours to each side that are positives: a window of 3; [QT]
    projection_dimensions: int = 256  # kept of CLLR's L for the evaluated vector; Chen et al. 2022
    # Whether L [f ; g] is divided by its length for the evaluation, as f and g are without L.
    normalise_projected: bool = option(False)

    batch_size: int = 400  # consecutive sentences; [QT]
    # Largest number of sentences that the encoder takes at once; the gradient is that of the
    # whole batch. None: all. See shared.chunks.
    chunk: int | None = option(None)
    # Order of the batches: that of the corpus ([QT]), or reshuffled in every epoch.
    order: Literal["corpus", "shuffled"] = "corpus"
    epochs: int = 1  # [QT]; evaluated after the last
    steps: int | None = None  # upper limit; None: all of the epochs
    learning_rate: float = 5e-4  # [QT]; Adam, constant
    clip: float = 5.0  # largest norm of the gradient of each variable, not of all together; [QT]
    precision: Literal["bfloat16", "float32"] = "bfloat16"  # of the encoders, on a GPU only

    train: bool = True  # False: the encoder stays as initialised
    # What is evaluated instead of an encoder: word counts, or none. ``ppmi_svd`` counts those
    # of the corpus, and has 2 ``embedding`` dimensions, as many as [f ; g] of bags of words.
    baseline: Literal["majority", "tfidf", "ppmi_svd"] | None = None
    tasks: tuple[str, ...] = TASKS
    protocol: str = "skip-thoughts-nested-10fold-v2"  # [QT]; see text.evaluation.PROTOCOLS
    seed: int = 0  # initialisation, and the order of shuffled batches

    # Of [QT]: expansion by pretrained vectors, fixed ones (MC-QT), and the norm over tokens.
    REMOVED: ClassVar[Mapping[str, Any]] = {
        "clip_words": "words",
        "fixed_vectors": None,
        "update": "dense",
        "word_vectors": None,
    }
    ranges: ClassVar[Mapping[Range, tuple[str, ...]]] = {
        COUNT: (
            *("vocabulary", "length", "embedding", "hidden", "layers", "heads", "reach"),
            *("projection_dimensions", "batch_size"),
        ),
        STEP: ("held_out", "epochs"),
        optional(STEP): ("steps",),
        PROBABILITY: ("dropout",),
        NOT_NEGATIVE: ("learning_rate",),
        POSITIVE_OR_INFINITE: ("clip",),
    }
    uses: ClassVar[tuple[Use, ...]] = (
        Use(
            (
                *("vocabulary", "lower_case", "embedding", "hidden"),
                *("bidirectional", "layers", "heads"),
            ),
            lambda config: config.init is None,
            "no init, which has its own",
        ),
        Use(("hidden",), lambda config: config.encoder != "bag_of_words", "another encoder"),
        Use(("bidirectional",), lambda config: config.encoder == "gru", "encoder gru"),
        Use(("layers", "heads"), lambda config: config.encoder == "transformer", "a transformer"),
        Use(
            ("projection_dimensions", "normalise_projected"),
            lambda config: config.objective.projection,
            "an objective with a projection",
        ),
        Use(
            ("epochs", "steps", "learning_rate", "clip", "dropout", "order", "chunk"),
            lambda config: config.train and config.baseline is None,
            "train=true and no baseline",
        ),
    )

    def reduced(self) -> "Config":
        """The same run on the manual that ships with Python, for the smoke tier."""
        return dataclasses.replace(
            self,
            corpus="manual",
            layout="wrapped",
            vocabulary=1000,
            held_out=10 if self.held_out else 0,
            embedding=32,
            hidden=32,
            layers=1,
            heads=2,
            projection_dimensions=min(self.projection_dimensions, 16),
            batch_size=50,
            epochs=1,
            steps=20,
            tasks=EMBEDDED_TASKS,
        )
