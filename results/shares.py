"""The share of each penalty and projection in the gradient on the embeddings, over a whole run.

Runs record it since it was introduced; for rows whose records are older the run of their first seed
is made again, and the median over its recorded steps is kept. ``docs/claims.md`` says what it
decides. ``python results/shares.py --data-root DATA`` measures what the file lacks of the rows
below and writes ``results/shares.json``.
"""

import argparse
import importlib
import json
import tempfile
from pathlib import Path
from typing import Any

from shared.command.cells import every_table
from shared.experiment.environment import current_environment
from shared.experiment.files import write_atomically
from shared.experiment.run import Run
from shared.experiment.tables import Cell
from shared.objective import SHARE_PREFIX
from shared.report.claims import SHARES

RESULTS = Path(__file__).resolve().parents[1] / "results"
# By table, the rows that claims and questions name: those with a number that the suite chose, and
# LMCL's on text. Each in the first column that has records.
ROWS = {
    "text/lmcl/table-4-small": (
        "LMCL(QT+DP)",
        "LMCL(QT+DP), mean",
        "LMCL(QT+DP), cosine",
        "LMCL(DCL+DP)",
        "LMCL(DCL+DP), mean",
        "LMCL(HCL+DP)",
        "LMCL(HCL+DP), mean",
    ),
    "rl/cllr/table-4-state-probe": (
        "CLLR(CURL+l21-norm), norm over batch",
        "CLLR(DCL+l21-norm), norm over batch",
        "CLLR(HCL+l21-norm), norm over batch",
    ),
    "vision/margins/table-2-cifar10": ("CLLR, l2,1", "CLLR, nuclear"),
}
COLUMNS = {"rl/cllr/table-4-state-probe": ("Spin", "Swingup")}  # those in the rows' mean


def first_cells() -> list[Cell]:
    """The cell of the first seed of each row, in each of its columns that are trained apart."""
    cells: dict[tuple[str, str, str], Cell] = {}
    tables = {table.address: table for table in every_table()}
    for address, rows in ROWS.items():
        for row in rows:
            for cell in tables[address].cells("short", row=row):
                if cell.run_name in COLUMNS.get(address, (cell.run_name,)):
                    cells.setdefault((address, row, cell.run_name), cell)
    return [*cells.values()]


def shares_of(cell: Cell, data: Path) -> dict[str, float]:
    """The median share of each penalty and projection over the recorded steps of a cell's run."""
    domain = importlib.import_module(f"{cell.domain}.domain").DOMAIN
    config: Any = cell.config
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        with Run(
            place / "run", config, tier=cell.tier, data_root=data, store=place / "store"
        ) as run:
            run.finish(domain.measure(config, run))
        environment = json.loads((place / "run" / "environment.json").read_text())
    loss = f"{SHARE_PREFIX}{config.objective.loss.function.__name__}"
    return {
        name.removeprefix(SHARE_PREFIX): float(value)
        for name, value in environment["facts"].items()
        if name.startswith(SHARE_PREFIX) and name != loss
    }


def main() -> None:
    """Measure what is missing."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data-root", type=Path, required=True, help="folder of the datasets")
    options = parser.parse_args()
    file = RESULTS / SHARES
    entries = json.loads(file.read_text())["shares"]
    done = {(entry["table"], entry["row"], entry["column"]) for entry in entries}
    for cell in first_cells():
        table = f"{cell.domain}/{cell.paper}/{cell.table}"
        if (table, cell.row, cell.run_name) in done:
            continue
        terms = shares_of(cell, options.data_root)
        environment = current_environment(0)
        print(cell.address, terms, flush=True)
        entries.append(
            {
                "table": table,
                "tier": cell.tier,
                "row": cell.row,
                "column": cell.run_name,
                "seed": cell.seed,
                "key": cell.key,
                "terms": terms,
                "commit": environment["commit"],
                "processor": environment["hardware"]["processor"],
            }
        )
        entries.sort(key=lambda entry: (entry["table"], entry["row"], entry["column"]))
        lines = ",\n".join(json.dumps(each, sort_keys=True) for each in entries)
        write_atomically(file, f'{{"shares": [\n{lines}\n]}}\n')


if __name__ == "__main__":
    main()
