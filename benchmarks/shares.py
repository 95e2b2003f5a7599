"""The share of each penalty and projection in the gradient on the embeddings, for committed rows.

Runs record it since it was introduced; for rows whose records are older, the first 200 steps of
their first seed are run again, with the share measured at each tenth. ``docs/claims.md`` says what
it decides. ``python benchmarks/shares.py --data-root DATA`` measures the rows that the file lacks
and writes ``results/shares.json``.
"""

import argparse
import contextlib
import importlib
import json
import statistics
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torch import Tensor

from shared import criterion
from shared.command.cells import every_table
from shared.experiment.environment import current_environment
from shared.experiment.files import write_atomically
from shared.experiment.frame import load
from shared.experiment.run import Means, Run
from shared.experiment.tables import Cell, Table
from shared.objective import SHARE
from shared.report.claims import SHARES

STEPS = 200
EVERY = 10
RESULTS = Path(__file__).resolve().parents[1] / "results"


class Enough(Exception):
    """The steps have been run."""


class Seen(Means):
    """Running means that keep each measured share."""

    def __init__(self) -> None:
        super().__init__()
        self.shares: dict[str, list[float]] = {}

    def add(self, parts: dict[str, Tensor]) -> None:
        """Add the parts of a step."""
        for name, value in parts.items():
            if name.startswith(SHARE):
                self.shares.setdefault(name, []).append(float(value))
        super().add(parts)


class Beginning(Run):
    """A run that ends after its first steps."""

    def steps(self, total: int, what: str, **options: Any) -> Iterator[int]:
        """The first of a loop's steps."""
        for step in super().steps(total, what, **options):
            if step * options.get("unit", 1) >= STEPS:
                raise Enough
            yield step


def waiting(done: set[tuple[str, str, str, str]]) -> Iterator[tuple[Table, Cell]]:
    """A cell of each claimed row with a penalty or projection whose records say no share."""
    tables = every_table()
    frame = load(tables, results=RESULTS, tiers=("paper", "short"))
    frame.check()
    for table in tables:
        claimed = {row for c in table.claims for p in c.comparisons for row in (p.better, p.than)}
        for tier in table.tiers if claimed else ():
            if tier == "smoke":
                continue
            finished = {
                (line.cell.row, line.cell.column): line.record
                for line in reversed(frame.of(table, tier))
                if line.cell and line.record and line.status == "valid"
            }
            seen: set[tuple[str, str]] = set()
            for cell in table.cells(tier):
                record = finished.get((cell.row, cell.column))
                terms = getattr(cell.config, "objective", None)
                if cell.row not in claimed or record is None or terms is None:
                    continue
                if not (terms.penalties or terms.projection):
                    continue
                facts = record.environment.get("facts", {})
                if any(name.startswith(SHARE) for name in facts):
                    continue
                address = (table.address, tier, cell.row, cell.source)
                if (cell.row, cell.source) not in seen and address not in done:
                    seen.add((cell.row, cell.source))
                    yield table, cell


def shares_of(cell: Cell, data: Path, store: Path) -> dict[str, float]:
    """The median share of each penalty and projection over the first steps of a cell's run.

    What several cells are trained on, such as an expert of a task, is kept in ``store``.
    """
    domain = importlib.import_module(f"{cell.domain}.domain").DOMAIN
    means = Seen()
    config: Any = cell.config
    with tempfile.TemporaryDirectory() as folder, contextlib.suppress(Enough):
        run = Beginning(Path(folder) / "run", config, tier=cell.tier, data_root=data, store=store)
        with run:
            run.means = means
            domain.measure(config, run)
    loss = f"{SHARE}{config.objective.loss.function.__name__}"
    return {
        name.removeprefix(SHARE): float(f"{statistics.median(values):.4g}")
        for name, values in means.shares.items()
        if name != loss
    }


def main() -> None:
    """Measure what is missing."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data-root", type=Path, required=True, help="folder of the datasets")
    parser.add_argument("--table", help="domain/paper/table; all by default")
    options = parser.parse_args()
    criterion.SHARES_EVERY = EVERY
    file = RESULTS / SHARES
    entries = json.loads(file.read_text())["shares"] if file.exists() else []
    done = {(entry["table"], entry["tier"], entry["row"], entry["column"]) for entry in entries}
    store = Path(tempfile.mkdtemp())
    for table, cell in waiting(done):
        if options.table not in (None, table.address):
            continue
        terms = shares_of(cell, options.data_root, store)
        if not terms:
            raise SystemExit(f"{cell.address}: no share was measured")
        environment = current_environment(0)
        print(cell.address, terms, flush=True)
        entries.append(
            {
                "table": table.address,
                "tier": cell.tier,
                "row": cell.row,
                "column": cell.source,
                "seed": cell.seed,
                "key": cell.key,
                "steps": STEPS,
                "terms": terms,
                "commit": environment["commit"],
                "processor": environment["hardware"]["processor"],
            }
        )
        entries.sort(
            key=lambda entry: (entry["tier"], entry["table"], entry["row"], entry["column"])
        )
        lines = ",\n".join(json.dumps(each, sort_keys=True) for each in entries)
        write_atomically(file, f'{{"shares": [\n{lines}\n]}}\n')


if __name__ == "__main__":
    main()
