"""Time and memory of a run, estimated from a few steps of its loop on made-up sentences.

What a projection adds is timed with it. The number of sentences of a corpus comes from the size of
its files; that of the tasks is known. Left out: the preparation of the corpus, which takes place
once.
"""

from pathlib import Path

import numpy as np

from shared import Objective, query_key
from shared.experiment.runs import Run
from shared.experiment.trial import cost_of, seconds_of_loss
from text.config import QUICK_THOUGHTS, Config
from text.tokens import Tokens
from text.train import pretrain

# Minutes and gigabytes of the baselines, on one core.
BASELINES = {"majority": (0.1, 0.5), "tfidf": (3.0, 0.8), "ppmi_svd": (1.2, 1.1)}
BASELINE = 0.6e9  # bytes of a process that has imported everything and done nothing
BYTES_OF_SENTENCE = 78  # of the public-domain books
LENGTH = 17  # tokens of a sentence there, on average
SENTENCES = {"books": 836_000, "bookcorpus": 74_000_000, "manual": 2_400}  # where no files are
TASK_SENTENCES = 52_600  # of the six tasks, both of each pair
TASK_ROWS = 10_662  # of the largest
# What the six tasks' classifiers take for each dimension of a vector, on one core: 400 dimensions
# took 20 seconds.
SOLVER = 0.05
SMALLEST, LARGEST = 25, 100  # sentences of the timed steps

# What a sentence costs is decided by these; runs that agree in them are measured once.
DECIDING = (
    "vocabulary",
    "encoder",
    "embedding",
    "hidden",
    "bidirectional",
    "layers",
    "heads",
    "length",
    "precision",
    "update",
)


def estimate(config: Config, data_root: Path) -> tuple[float, float]:
    """Minutes and peak gigabytes (of 1e9 bytes) of one run on this machine's device.

    Args:
        config: of the run.
        data_root: where the corpus is looked for.
    """
    if config.baseline is not None:
        return BASELINES[config.baseline]
    deciding = {name: getattr(config, name) for name in DECIDING}
    deciding["objective"] = Objective(QUICK_THOUGHTS.loss, projection=config.objective.projection)
    cost = cost_of(train, Config(), deciding, smallest=SMALLEST, largest=LARGEST)
    width = config.embedding if config.encoder == "bag_of_words" else config.hidden
    sentences = count_of(config.corpus, data_root)
    steps = config.epochs * (sentences // config.batch_size) if config.train else 0
    steps = steps if config.steps is None else min(steps, config.steps)
    step = cost.seconds(config.batch_size)
    if steps:
        step += seconds_of_loss(config.objective, config.batch_size, width, query_key)
    # A vector is half a step's work on its sentence, or less: there is no way back.
    evaluation = TASK_SENTENCES * cost.per_item / 2 + SOLVER * 2 * width
    working = config.batch_size * cost.kept if config.train else 0.0
    size = BASELINE + cost.fixed + working + 3 * 4 * TASK_ROWS * 2 * width
    return (steps * step + evaluation) / 60, size / 1e9


def train(config: Config, run: Run) -> None:
    """The loop of a run on made-up sentences, four batches of them."""
    tokens = made_up(4 * config.batch_size, config.vocabulary)
    pretrain(config, tokens, run, words=config.vocabulary + 1)


def count_of(corpus: str, data_root: Path) -> int:
    """About how many sentences a corpus has, by the size of its files."""
    size = sum(file.stat().st_size for file in (data_root / corpus).rglob("*.txt"))
    return size // BYTES_OF_SENTENCE if size else SENTENCES.get(corpus, SENTENCES["books"])


def made_up(sentences: int, vocabulary: int) -> Tokens:
    """Sentences of random words, as long as those of books."""
    generator = np.random.default_rng(0)
    lengths = generator.geometric(1 / LENGTH, sentences)
    offsets = np.concatenate([[0], lengths.cumsum()]).astype(np.int64)
    ids = generator.integers(2, vocabulary, offsets[-1]).astype(np.int32)
    return Tokens(ids, offsets, np.zeros(sentences, dtype=np.int32))
