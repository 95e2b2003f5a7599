"""Time and memory of a run, estimated from a few steps on made-up sentences.

A step is timed with few sentences and with more, its line drawn on to the run's batch, and
multiplied by the number of steps. What a projection adds is timed with it. The number of sentences
of a corpus comes from the size of its files; that of the tasks is known. Left out: what losses
other than InfoNCE add, and the preparation of the corpus, which takes place once.
"""

import dataclasses
import time
from pathlib import Path

import numpy as np
import torch
from torch import nn

from shared import Objective
from shared.experiment.tables import canonical_json
from text.config import QUICK_THOUGHTS, Config
from text.encoder import QuickThought
from text.tokens import Tokens
from text.train import make_criterion, shape_of, train_step

# Minutes and gigabytes of the baselines, on one core.
BASELINES = {"majority": (0.1, 0.5), "tfidf": (3.0, 0.8)}
BASELINE = 0.6e9  # bytes of a process that has imported everything and done nothing
BYTES_OF_SENTENCE = 78  # of the public-domain books
LENGTH = 17  # tokens of a sentence there, on average
SENTENCES = {"books": 836_000, "bookcorpus": 74_000_000, "manual": 2_400}  # where no files are
TASK_SENTENCES = 52_600  # of the six tasks, both of each pair
TASK_ROWS = 10_662  # of the largest
# What the six tasks' classifiers take for each dimension of a vector, on one core: 400 dimensions
# took 20 seconds.
SOLVER = 0.05
BATCHES = (25, 75)  # sentences of the timed steps

# What a sentence costs is decided by these; runs that agree in them are calibrated once.
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
)

_calibrations: dict[str, tuple[float, float]] = {}


def estimate(config: Config, data_root: Path) -> tuple[float, float]:
    """Minutes and peak gigabytes (of 1e9 bytes) of one run on this machine's device.

    Args:
        config: of the run.
        data_root: where the corpus is looked for.
    """
    if config.baseline is not None:
        return BASELINES[config.baseline]
    per_step, per_sentence = _calibrated(config)
    sentences = count_of(config.corpus, data_root)
    steps = config.epochs * (sentences // config.batch_size) if config.train else 0
    steps = steps if config.steps is None else min(steps, config.steps)
    width = config.embedding if config.encoder == "bag_of_words" else config.hidden
    # A vector is half a step's work on its sentence, or less: there is no way back.
    evaluation = TASK_SENTENCES * per_sentence / 2 + SOLVER * 2 * width
    seconds = steps * (per_step + config.batch_size * per_sentence) + evaluation

    model = QuickThought(shape_of(config, config.vocabulary + 1))
    parameters = sum(item.numel() for item in model.parameters())
    if config.objective.projection is not None:
        parameters += (2 * width) ** 2
    states = 4 * config.batch_size * LENGTH * 12 * width  # of a GRU over a batch
    size = BASELINE + 4 * 4 * parameters + 4 * states + 3 * 4 * TASK_ROWS * 2 * width
    return seconds / 60, size / 1e9


def count_of(corpus: str, data_root: Path) -> int:
    """About how many sentences a corpus has, by the size of its files."""
    size = sum(file.stat().st_size for file in (data_root / corpus).rglob("*.txt"))
    return size // BYTES_OF_SENTENCE if size else SENTENCES.get(corpus, SENTENCES["books"])


def _calibrated(config: Config) -> tuple[float, float]:
    """Seconds of a step whatever its batch, and for each sentence of it."""
    # What is not about an encoder or a projection costs next to nothing beside them.
    alike = dataclasses.replace(
        Config(),
        objective=Objective(QUICK_THOUGHTS.loss, projection=config.objective.projection),
        **{name: getattr(config, name) for name in DECIDING},
    )
    name = canonical_json(alike)
    if name not in _calibrations:
        _calibrations[name] = _calibrate(alike)
    return _calibrations[name]


def _calibrate(config: Config) -> tuple[float, float]:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = QuickThought(shape_of(config, config.vocabulary + 1))
    criterion = make_criterion(config, model.dim)
    modules = nn.ModuleList([model, criterion]).to(device)
    optimiser = torch.optim.Adam(modules.parameters(), lr=config.learning_rate, fused=True)
    tokens = made_up(BATCHES[-1], config.vocabulary)
    times = []
    for size in BATCHES:
        batch = tokens.batch(0, size, config.length)
        best = float("inf")
        for _ in range(2):  # the first also chooses kernels
            start = _clock(device)
            train_step(config, model, criterion, optimiser, batch, 1)
            best = min(best, _clock(device) - start)
        times.append(best)
    per_sentence = max(0.0, times[1] - times[0]) / (BATCHES[1] - BATCHES[0])
    return max(0.0, times[0] - BATCHES[0] * per_sentence), per_sentence


def made_up(sentences: int, vocabulary: int) -> Tokens:
    """Sentences of random words, as long as those of books."""
    generator = np.random.default_rng(0)
    lengths = generator.geometric(1 / LENGTH, sentences)
    offsets = np.concatenate([[0], lengths.cumsum()]).astype(np.int64)
    ids = generator.integers(2, vocabulary, offsets[-1]).astype(np.int32)
    return Tokens(ids, offsets, np.zeros(sentences, dtype=np.int32))


def _clock(device: str) -> float:
    """Seconds; on the CPU of the processor for each thread, which no other process stretches."""
    if device == "cpu":
        return time.process_time() / torch.get_num_threads()
    torch.cuda.synchronize()
    return time.perf_counter()
