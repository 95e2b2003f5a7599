"""Time to check the committed records, and ten copies of them: it should grow in proportion.

Run it as ``python benchmarks/records.py``. Copies are in a temporary folder, in which every line of
every file of records occurs several times; the check reports these duplicates, which are not shown.
"""

import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from shared.command.cells import every_table
from shared.command.verify import check
from shared.experiment.records import RECORDS

ROOT = Path(__file__).resolve().parents[1]
COPIES = 10


def main() -> None:
    """Time both, and print a table."""
    tables = every_table()
    check(tables, ROOT / "results", ROOT / "none")  # expands the tables once
    print("| records | s | s for 1000 |")
    print("|---|---|---|")
    with tempfile.TemporaryDirectory() as temporary:
        for copies in (1, COPIES):
            results = Path(temporary, str(copies))
            for file in (ROOT / "results").rglob(f"*{RECORDS}"):
                target = results / file.relative_to(ROOT / "results")
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(file.read_bytes() * copies)
            start = time.process_time()
            checked = check(tables, results, ROOT / "none")
            seconds = time.process_time() - start
            count = sum(len(group.records) for group in checked.groups)
            print(f"| {count} | {seconds:.2f} | {1000 * seconds / count:.2f} |")


if __name__ == "__main__":
    main()
