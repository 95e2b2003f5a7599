"""Where runs, results and data lie, and what the runs on this disk hold."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from shared.command.domains import tables_of
from shared.experiment import store
from shared.experiment.arithmetic import OTHER_PATHS, REPEATS
from shared.experiment.records import (
    Damaged,
    Record,
    read_failure,
    read_record,
    read_records,
    read_repeats,
)
from shared.experiment.runs import move_earlier
from shared.experiment.tables import Cell, Table, Tier
from shared.report import measuring


@dataclass(frozen=True)
class Places:
    """Where things lie."""

    runs: Path
    results: Path
    data: Path

    @property
    def store(self) -> Path:
        """Where pretrained models lie that several cells share."""
        return self.runs / store.FOLDER

    def store_of(self, cell: Cell) -> Path | None:
        """The store of a cell; none for the smoke tier, which trains faster than it would keep."""
        return None if cell.tier == "smoke" else self.store


def settle(places: Places, domain: str) -> None:
    """Move a domain's runs from where an earlier version put them, and say so."""
    kinds = list({type(t.config): None for some in tables_of(domain).values() for t in some})
    for runs in (places.runs, *(repeats_folder(places.runs, path) for path in OTHER_PATHS)):
        if runs.is_dir() and (moved := move_earlier(runs, domain, kinds)):
            text = "runs of an earlier version were moved to where they would be made today"
            print(f"{moved} {text}, below {runs / domain}")


def run_folder(places: Places, cell: Cell) -> Path:
    """The folder of a cell's run, which it shares with every cell of an equal configuration."""
    return places.runs / cell.folder


def finished(cell: Cell, places: Places) -> Record | None:
    """The finished run of a cell; None, too, for a damaged one, which is refused when run."""
    return undamaged(run_folder(places, cell), cell.address)


def undamaged(folder: Path, address: str) -> Record | None:
    """The finished run in a folder; None without one, or for a damaged one."""
    try:
        return read_record(folder, address)
    except Damaged:
        return None


@dataclass(frozen=True)
class Committed:
    """The records that lie in results, of all tables."""

    records: Sequence[Record]
    repeats: Sequence[Record]

    @classmethod
    def read(cls, places: Places) -> "Committed":
        """Those below ``places.results``: thousands of lines, to be read once for all tables."""
        return cls(read_records(places.results), read_repeats(places.results))

    def of(self, domain: str) -> "Committed":
        """Those of one domain, by their addresses."""
        kept = (
            [each for each in some if f"/{domain}/" in f"/{each.address}"]
            for some in (self.records, self.repeats)
        )
        return Committed(*kept)


def measure(
    table: Table,
    tier: Tier,
    places: Places,
    outcomes: dict[str, str],
    committed: Committed | None = None,
) -> measuring.Measured:
    """The table as the runs on this disk fill it, and the committed records if they are given."""
    records: list[Record] = []
    status = dict(outcomes)
    for cell in table.cells(tier):
        folder = run_folder(places, cell)
        if not folder.exists():  # said of every cell that has no status
            continue
        try:
            record = read_record(folder, cell.address)
            if record is not None:
                records.append(record)
            elif cell.address not in status and (why := read_failure(folder)):
                status[cell.address] = why
        except Damaged as error:
            status[cell.address] = f"{measuring.REFUSED}: {error}"
    repeats: list[Record] = []
    figures: tuple[str, ...] = ()
    if committed is not None:
        # Of two records that count for one cell the later is taken: that of this disk.
        records = [*committed.records, *records]
        figures = measuring.read_figures(places.results, table, tier)
        repeats = [*committed.repeats, *_repeated(table, tier, places)]
    return measuring.measure(table, tier, records, status, figures, repeats)


def repeats_folder(runs: Path, path: str) -> Path:
    """Where the runs of one of the other code paths lie, as others do below ``runs``."""
    return runs / REPEATS / path


def _repeated(table: Table, tier: Tier, places: Places) -> list[Record]:
    """The finished runs of a table under other code paths; damaged ones are left out."""
    found = (
        undamaged(folder / cell.folder, cell.address)
        for path in OTHER_PATHS
        if (folder := repeats_folder(places.runs, path)).is_dir()
        for cell in {cell.address: cell for cell in table.cells(tier)}.values()
    )
    return [record for record in found if record is not None]
