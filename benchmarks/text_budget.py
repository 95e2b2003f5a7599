"""How the learning rate of the short text tier's raw inner products is chosen: QT alone.

Run it as ``SUITE_DATA=data python benchmarks/text_budget.py`` or with ``--data-root data``, where
the books and the six tasks of SentEval are; six minutes on one core.

The rule, fixed before the first of these runs. The tier's QT is trained and evaluated as its cells
are, at every rate, on two seeds that no table has. Quick-thought's own rate stays unless another is
better by more than half a point in the mean of the six tasks and by more than a third of a point in
finding the next sentence of held-out books; of several such, the one with the largest mean of the
tasks is taken. What is chosen is ``RAW_RATE`` in ``text/tables.py``; this program ends with 1 while
that says otherwise.
"""

import argparse
import dataclasses
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import text
from shared.experiment.data import data_root
from shared.experiment.run import Run
from text.tables import RAW_RATE, TABLE_4_SMALL

SEEDS = (100, 101)  # no table has them
RATES, RATE = (1e-4, 1e-3, 2e-3), 5e-4  # others, and quick-thought's own
MARGINS = (0.5, 0.33)  # points by which both must be better
READ_OUTS = ("mean", "next_sentence")
Scores = tuple[float, float]


def scores(root: Path, rate: float) -> Scores:
    """The mean of the tasks and the accuracy of the next sentence, in percent, over the seeds."""
    results = []
    for seed in SEEDS:
        config = TABLE_4_SMALL.cells("short", row="QT", seeds=(0,))[0].config
        assert isinstance(config, text.Config)
        config = dataclasses.replace(config, learning_rate=rate, seed=seed)
        start = time.process_time()
        with (
            tempfile.TemporaryDirectory() as folder,
            Run(Path(folder), config, data_root=root) as run,
        ):
            metrics = text.measure(config, run)
        results.append([float(str(metrics[name])) for name in READ_OUTS])
        mean, following = results[-1]
        print(
            f"rate {rate:g}, seed {seed}: mean of the tasks {mean:.2f}, next sentence "
            f"{following:.2f}; {time.process_time() - start:.0f} CPU-seconds",
            flush=True,
        )
    mean, following = map(statistics.mean, zip(*results, strict=True))
    return mean, following


def chosen(by_rate: Mapping[float, Scores]) -> float:
    """Quick-thought's rate, or the one that is better by more than the margins in both."""
    base = by_rate[RATE]
    better = {
        rate: pair[0]
        for rate, pair in by_rate.items()
        if all(a > b + least for a, b, least in zip(pair, base, MARGINS, strict=True))
    }
    return max(better, key=better.__getitem__) if better else RATE


def main() -> int:
    """Try, choose and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-root", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    root = data_root(options.data_root)
    rate = chosen({candidate: scores(root, candidate) for candidate in (RATE, *RATES)})
    print(f"chosen: {rate:g}; RAW_RATE in text/tables.py is {RAW_RATE:g}")
    return int(rate != RAW_RATE)


if __name__ == "__main__":
    sys.exit(main())
