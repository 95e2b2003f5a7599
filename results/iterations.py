"""Seconds an iteration of rows of margins' reduced Table 2, beside the baseline of each.

The steps are those of the suite's own training loop on the table's data and network. In each round
every row trains for a few steps, baselines included; a ratio is that of two medians of one round.
``python results/iterations.py --data-root DATA`` writes ``results/iterations.json``, from which
the pages say what a method costs; to be run on an idle machine.
"""

import argparse
import contextlib
import itertools
import json
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from shared.experiment.environment import current_environment
from shared.experiment.files import write_atomically
from shared.experiment.run import Run
from shared.experiment.tables import Cell
from shared.report.claims import ITERATIONS
from vision.domain import DOMAIN
from vision.tables_margins import TABLE_2_CIFAR10 as TABLE

ROUNDS, WARM, TIMED = 8, 3, 12
RESULTS = Path(__file__).resolve().parents[1] / "results"
# Each row beside its baseline.
ROWS = {
    "MoCo + pos.": "MoCo",
    "MoCo + pos. & curv.": "MoCo",
    "SimCLR + pos.": "SimCLR",
    "SimCLR + pos. & curv.": "SimCLR",
    "SimCLR + DP, anchor sum": "SimCLR",
    "CLLR, l2,1": "SimCLR",
    "CLLR, nuclear": "SimCLR",
    "MMCL INV, both views": "SimCLR",
    "MMCL PGD, both views": "SimCLR",
    "HCL": "SimCLR",
    "DCL": "SimCLR",
}


class Enough(Exception):
    """The steps have been timed."""


class Timed(Run):
    """A run that times its first steps after the warm-up, and ends."""

    def steps(self, total: int, what: str, **options: Any) -> Iterator[int]:
        """The first of a loop's steps."""
        self.timed: list[float] = []
        for step in itertools.islice(super().steps(total, what, **options), WARM + TIMED):
            start = time.perf_counter()
            yield step
            self.timed.append(time.perf_counter() - start)
        raise Enough


def seconds_of(cell: Cell, data: Path) -> float:
    """The median of the timed steps."""
    config: Any = cell.config
    with tempfile.TemporaryDirectory() as folder:
        run = Timed(Path(folder) / "run", config, tier=cell.tier, data_root=data)
        with run, contextlib.suppress(Enough):
            DOMAIN.measure(config, run)
    return statistics.median(run.timed[WARM:])


def main() -> None:
    """Time all rows."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data-root", type=Path, required=True, help="folder of the datasets")
    options = parser.parse_args()
    torch.set_num_threads(1)
    timed = {*ROWS, *ROWS.values()}
    cells = {
        cell.row: cell for cell in TABLE.cells("short") if cell.seed == 0 and cell.row in timed
    }
    rounds: list[dict[str, float]] = []
    for number in range(ROUNDS):
        rounds.append({label: seconds_of(cell, options.data_root) for label, cell in cells.items()})
        print(f"round {number + 1} of {ROUNDS}", flush=True)
    environment = current_environment(0)
    entries = []
    for label, against in ROWS.items():
        entries.append(
            {
                "table": TABLE.address,
                "tier": "short",
                "row": label,
                "against": against,
                "seconds": round(statistics.median(times[label] for times in rounds), 4),
                "ratios": [round(times[label] / times[against], 4) for times in rounds],
                "commit": environment["commit"],
                "processor": environment["hardware"]["processor"],
            }
        )
    lines = ",\n".join(json.dumps(entry, sort_keys=True, ensure_ascii=False) for entry in entries)
    write_atomically(RESULTS / ITERATIONS, f'{{"iterations": [\n{lines}\n]}}\n')


if __name__ == "__main__":
    main()
