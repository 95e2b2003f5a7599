"""Time of the evaluation of a sentence encoder and of a pretraining step.

Run it as ``SUITE_DATA=data python benchmarks/text.py`` or with ``--data-root data``, where the six
tasks of SentEval are; ``--only`` picks some of its three parts. On a machine with a GPU it measures
there, scikit-learn always on the CPU.

The encoder that is evaluated is no trained one: each half of a sentence's vector is the sum of
random vectors of its words, of length 1. What takes time is the classifiers, and what that depends
on is the spectrum of the features: ``--decay 0.6`` gives word vectors correlated like trained ones,
which are easier.

* ``solver``: all logistic regressions of each task (``--task``: of some) with ``shared.logistic``
  beside scikit-learn's, fold by fold and cost by cost, L-BFGS with its default tolerance, the same
  float32 features. Of scikit-learn's every ``--every``-th training set is timed, at all costs, and
  the time scaled; ``--every 1`` runs them all. The objectives are compared in float64, the
  accuracies on the rows that a training set leaves out. Its default stops well above the minimum;
  with ``--tolerance 1e-8`` both should agree.
* ``tasks``: the six tasks as ``text.evaluation`` runs them.
* ``step``: a training step of the paper's bag of words and GRU pairs, batch 400 and 50,001 words,
  sentences as long as those of MR; of bags of words also those of the short tiers, with Adam moving
  every row in each step (``dense``) and only those that a batch has (``rows``), side by side.
"""

import argparse
import dataclasses
import statistics
import sys
import time
import warnings
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from scipy.special import log_softmax
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from threadpoolctl import threadpool_limits

from shared import logistic
from shared.experiment.data import data_root
from text.config import TASKS, Config
from text.data import Task, load_task
from text.encoder import QuickThought
from text.evaluation import DEFAULT_PROTOCOL, PROTOCOLS, evaluate, splits_of
from text.optimiser import AT_ONCE, RowAdam, clip_each
from text.train import make_criterion, make_optimiser, pairs_of, shape_of

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


class Stopwatch:
    """Seconds by name; waits for the device at both ends of what it times."""

    def __init__(self) -> None:
        self.seconds: defaultdict[str, list[float]] = defaultdict(list)

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        """Time the block under ``name``."""
        self._wait()
        start = time.perf_counter()
        yield
        self._wait()
        self.seconds[name].append(time.perf_counter() - start)

    def _wait(self) -> None:
        if DEVICE == "cuda":
            torch.cuda.synchronize()


class RandomWords:
    """Encodes a sentence as the sums of its words' random vectors, (n, dimensions)."""

    def __init__(self, dimensions: int, decay: float) -> None:
        self.generator = np.random.default_rng(0)
        self.half = dimensions // 2
        # The spectrum of the word vectors falls by this power, in a random basis.
        basis, _ = np.linalg.qr(self.generator.normal(size=(self.half, self.half)))
        scale = np.arange(1, self.half + 1.0) ** -decay
        self.mixing = (scale[:, None] * basis).astype(np.float32)
        self.words: dict[str, int] = {}
        self.seconds = 0.0

    def __call__(self, sentences: Sequence[str]) -> np.ndarray:
        """The vectors (n, dimensions), float32."""
        start = time.perf_counter()
        split = [sentence.split() for sentence in sentences]
        ids = [[self.words.setdefault(word, len(self.words)) for word in each] for each in split]
        halves = []
        for seed in (1, 2):
            generator = np.random.default_rng(seed)
            table = generator.standard_normal((len(self.words), self.half), dtype=np.float32)
            sums = np.stack([table[each].sum(0) for each in ids]) @ self.mixing
            halves.append(sums / np.linalg.norm(sums, axis=1, keepdims=True).clip(1e-6))
        self.seconds += time.perf_counter() - start
        return np.concatenate(halves, axis=1)


def problem(task: Task, encode: RandomWords) -> tuple[Tensor, Tensor, Tensor, tuple[float, ...]]:
    """Features (n, d), labels (n,), training sets (n, F) and costs of a task's search."""
    features = torch.tensor(encode([*task.first, *(task.second or ())]))
    if task.second is not None:
        first, second = features.chunk(2)
        features = torch.cat([(first - second).abs(), first * second], 1)
    search = PROTOCOLS[DEFAULT_PROTOCOL].search(task)
    sets = [
        rows
        for split in splits_of(task, search)
        for rows in (split.train, *(fit for fit, _ in split.inner))
    ]
    training = torch.zeros(len(features), len(sets), dtype=torch.bool)
    for number, rows in enumerate(sets):
        training[rows, number] = True
    return features, torch.tensor(task.labels), training, tuple(search.costs)


def objective(
    features: np.ndarray, labels: np.ndarray, weights: np.ndarray, bias: np.ndarray, cost: float
) -> float:
    """In float64, of weights (d, K) and bias (K,)."""
    scores = features.astype(np.float64) @ weights.astype(np.float64) + bias
    if scores.shape[1] == 1:
        scores = np.concatenate([np.zeros_like(scores), scores], 1)
    losses = -log_softmax(scores, axis=1)[np.arange(len(labels)), labels]
    return cost * float(losses.sum()) + float((weights.astype(np.float64) ** 2).sum()) / 2


def report_solver(options: argparse.Namespace, name: str, task: Task) -> None:
    """Print our time and scikit-learn's on one task, and how far the solutions agree."""
    encode, every = RandomWords(options.dimensions, options.decay), options.every
    features, labels, training, costs = problem(task, encode)
    sets = training.shape[1]
    watch = Stopwatch()
    on_device = [each.to(DEVICE) for each in (features, labels, training)]
    with watch("ours"):
        solution = logistic.fit(on_device[0], on_device[1], on_device[2], costs)
    with watch("prediction"):
        predicted = solution.predict(on_device[0]).cpu().numpy()

    x, y = features.numpy(), labels.numpy()
    gaps, accuracies, unfinished = [], [], 0
    timed = range(0, sets, every)
    for number in timed:
        inside = training[:, number].numpy()
        for place, cost in enumerate(costs):
            model = LogisticRegression(C=cost, tol=options.tolerance, max_iter=20_000)
            with (
                warnings.catch_warnings(record=True) as caught,
                threadpool_limits(options.threads),
            ):
                warnings.simplefilter("always", ConvergenceWarning)
                with watch("theirs"):
                    model.fit(x[inside], y[inside])
            unfinished += len(caught)
            weights = solution.weights[number, place].cpu().numpy()
            bias = solution.intercepts[number, place].cpu().numpy()
            ours = objective(x[inside], y[inside], weights, bias, cost)
            theirs = objective(x[inside], y[inside], model.coef_.T, model.intercept_, cost)
            gaps.append(theirs / ours - 1)
            right = y[~inside] == model.predict(x[~inside])
            accuracies.append(
                100 * float((y[~inside] == predicted[number, place, ~inside]).mean() - right.mean())
            )
    theirs_seconds = sum(watch.seconds["theirs"]) * sets / len(timed)
    ours_seconds = watch.seconds["ours"][0]
    kind = f"{len(timed)} of its {sets} training sets timed, scaled" if every > 1 else "all fits"
    fits = f"{sets} training sets, {len(costs)} costs: {sets * len(costs)} logistic regressions"
    print(f"{name}: {len(features)} rows, {features.shape[1]} features, {fits}")
    print(f"  shared.logistic {ours_seconds:9.1f} s   {solution.iterations} steps", end="")
    print(f", and {watch.seconds['prediction'][0]:.1f} s to predict all rows")
    print(f"  scikit-learn   {theirs_seconds:9.1f} s   {kind}; {unfinished} not converged")
    print(f"  ratio          {theirs_seconds / ours_seconds:9.1f}")
    print(f"  its objective above ours: {min(gaps):+.1e} to {max(gaps):+.1e} of it")
    print(
        f"  accuracy, ours - its: mean {statistics.mean(accuracies):+.3f} points, largest ", end=""
    )
    print(f"difference of a fit {max(map(abs, accuracies)):.3f}\n")


def report_tasks(root: Path, dimensions: int, decay: float) -> None:
    """Print the seconds of each task, and of all."""
    total = 0.0
    for name in TASKS:
        encode = RandomWords(dimensions, decay)
        start = time.perf_counter()
        accuracy = evaluate(encode, root, tasks=(name,))[name]
        seconds = time.perf_counter() - start - encode.seconds
        total += seconds
        print(f"  {name:5s} {seconds:9.1f} s   accuracy {accuracy:.1f}")
    print(f"  all   {total:9.1f} s   (target: under 100 s on two cores)\n")


def report_step(config: Config, lengths: Sequence[int], steps: int) -> None:
    """Print the seconds of a training step and of its parts, medians but for the first."""
    torch.manual_seed(0)
    model = QuickThought(shape_of(config, config.vocabulary))
    criterion = make_criterion(config, model.dim)
    modules = nn.ModuleList([model, criterion]).to(DEVICE)
    optimiser = make_optimiser(config, model, criterion)
    mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    chapter = torch.zeros(len(lengths), dtype=torch.int64, device=DEVICE)
    watch = Stopwatch()
    half = DEVICE == "cuda" and config.precision == "bfloat16"
    for step in range(steps):
        # As often as in prose: inversely to a word's rank.
        ids = (config.vocabulary ** torch.rand(mask.shape)).long().clamp(2, config.vocabulary - 1)
        ids = ids.where(mask, 1)
        with watch("step"):
            if isinstance(optimiser, RowAdam):
                with watch("catching up"):
                    optimiser.catch_up(ids[mask].unique())
            with watch("forward"), torch.autocast(DEVICE, torch.bfloat16, enabled=half):
                vectors = model(ids.to(DEVICE), mask)
            with watch("loss"):
                f, g = (each.detach().requires_grad_() for each in vectors)
                loss, _ = criterion(pairs_of(config, f, g, chapter), step=step)
                gradients = torch.autograd.grad(loss, (f, g))
            with watch("backward"):
                optimiser.zero_grad()
                torch.autograd.backward(vectors, gradients)
            with watch("optimiser"):
                clip_each(modules.parameters(), config.clip, tokens=False)
                optimiser.step()
    # Rows wait from here on; what comes before is no measure.
    first = AT_ONCE + 1 if isinstance(optimiser, RowAdam) else 1
    median = {name: statistics.median(every[first:]) for name, every in watch.seconds.items()}
    encoders, total = median["forward"] + median["backward"], median["step"]
    rest = median["optimiser"] + median.get("catching up", 0.0)
    print(f"  {config.encoder:13s} {config.embedding:4d}-d, {config.vocabulary:6d} words", end="")
    print(
        f", {config.update:5s} {1000 * total:8.1f} ms a step: encoders {encoders / total:.0%}",
        end="",
    )
    print(f", loss {median['loss'] / total:.0%}, optimiser {rest / total:.0%}")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-root", type=Path)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--dimensions", type=int, default=2400, help="of a sentence's vector")
    parser.add_argument("--decay", type=float, default=0.0, help="of the word vectors' spectrum")
    parser.add_argument("--only", choices=("solver", "tasks", "step"), nargs="+")
    parser.add_argument(
        "--task", choices=TASKS, nargs="+", default=TASKS, help="of the solvers' comparison"
    )
    parser.add_argument("--tolerance", type=float, default=1e-4, help="scikit-learn's")
    parser.add_argument("--every", type=int, default=25, help="training set that scikit-learn fits")
    parser.add_argument(
        "--steps", type=int, default=4, help="training steps, the first not counted"
    )
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    root = data_root(options.data_root)
    parts = options.only or ("solver", "tasks", "step")
    where = torch.cuda.get_device_name() if DEVICE == "cuda" else f"{options.threads} CPU threads"
    print(f"{where}; sentence vectors of {options.dimensions} dimensions\n")
    if "solver" in parts:
        for name in options.task:
            report_solver(options, name, load_task(name, root))
    if "tasks" in parts:
        print("the six tasks, without the encoder")
        report_tasks(root, options.dimensions, options.decay)
    if "step" in parts:
        print("a training step on 400 sentences")
        sentences = load_task("MR", root).first[:400]
        lengths = [min(50, len(sentence.split())) for sentence in sentences]
        bag = Config(encoder="bag_of_words")
        closed = dataclasses.replace(bag, embedding=200, vocabulary=20_001)
        small = dataclasses.replace(closed, embedding=50)
        for config in (bag, closed, small):
            report_step(config, lengths, options.steps)
            by_rows = dataclasses.replace(config, update="rows")
            report_step(by_rows, lengths, AT_ONCE + options.steps)
        report_step(Config(), lengths, options.steps)


if __name__ == "__main__":
    main()
