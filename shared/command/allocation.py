"""What the chosen tables ask of a cluster's GPUs, in one table for a request of time there."""

import shlex
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table as Grid
from rich.text import Text

from shared.command import gpu
from shared.command.cells import Chosen, Places, imported
from shared.command.plan import missing_data
from shared.errors import program
from shared.experiment.frame import unfinished
from shared.experiment.tables import Cell
from shared.report.wording import counted

# Gigabytes to download, of the files that their publishers offer; others are not known.
DOWNLOADS = {
    **{"CIFAR10": 0.17, "CIFAR100": 0.17, "STL10": 2.6, "TinyImageNet": 0.25},
    **{"ImageNet": 155.0, "ImageNet100": 155.0, "Aircraft": 2.8, "Cars": 2.0, "DTD": 0.6},
    **{"Flowers": 0.3, "Food": 5.0, "EuroSAT": 0.1, "Caltech101": 0.1, "Pets": 0.8},
    **{"SUN397": 37.0, "VOC2007": 0.9, "supervised-resnet50": 0.1},
}


def allocation(chosen: Sequence[Chosen], places: Places, options: Namespace) -> RenderableType:
    """Data, hours, memory and disk of the unfinished cells, in the order of the commands.

    The cheapest table comes first, each after those with which it shares trainings.
    """
    grid = Grid(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    grid.add_column(program(), overflow="fold")
    for name in ("cells", "hours of\none GPU", f"hours at\n--jobs {options.gpus}"):
        grid.add_column(name, justify="right", no_wrap=True)
    for name in ("GB of\na GPU", "GB of\ndisk"):
        grid.add_column(name, justify="right", no_wrap=True)
    left = {selected.table.address: unfinished(selected.cells, places.runs) for selected in chosen}
    disk, by_hand, unsized = _add_missing_data(left, places, grid)
    whole, hours, count = gpu.GpuCost(), 0.0, 0
    for address, cost in gpu.cheapest_first(
        {address: gpu.trainings(cells) for address, cells in left.items() if cells}
    ):
        count += len(left[address])
        hours += cost.hours_on(options.gpus)
        whole += cost
        grid.add_row(
            Text(_command(address, options)), *_cost_columns(left[address], cost, options.gpus)
        )
    grid.add_section()
    numbers = [f"{count:,}", _hours_text(whole.hours, whole), _hours_text(hours, whole)]
    numbers += [gpu.rounded(whole.gigabytes), gpu.rounded(disk + whole.disk)]
    grid.add_row("in all", *numbers)
    return Group(grid, *map(Text, _notes(whole, by_hand, unsized, options)))


def _add_missing_data(
    left: Mapping[str, Sequence[Cell]], places: Places, grid: Grid
) -> tuple[float, list[str], list[str]]:
    """Add a line for each missing dataset.

    Returns their gigabytes, how to get those that no command fetches, and those of unknown size.
    """
    cells = [cell for cells_of_table in left.values() for cell in cells_of_table]
    domains = dict.fromkeys(cell.domain for cell in cells)
    # Parts of one dataset are in one folder and are downloaded together.
    missing = {
        (dataset.folder, dataset.how): dataset for dataset in missing_data(cells, places)
    }.values()
    lines = {
        dataset.name: f"by hand: {dataset.name}"
        if dataset.how
        else dataset.command.removeprefix(f"{program()} ")
        for dataset in missing
    }
    for domain in domains:
        if all(experiment.missing is None for experiment in imported(domain).experiments):
            lines[domain] = f"data {domain}"  # only the run finds out
    for name, line in lines.items():
        size = gpu.rounded(DOWNLOADS[name]) if name in DOWNLOADS else "unknown"
        grid.add_row(Text(line), "", "", "", "", size)
    by_hand = [f"{dataset.name}: {dataset.how}" for dataset in missing if dataset.how]
    unsized = [name for name in lines if name not in DOWNLOADS]
    return sum(DOWNLOADS.get(name, 0.0) for name in lines), by_hand, unsized


def _command(address: str, options: Namespace) -> str:
    if options.cell:
        return f"--cell {options.cell}"
    domain, paper, name = address.split("/")
    words = [domain, paper, "--table", name.removeprefix("table-")]
    words += [] if options.tier == "paper" else ["--tier", options.tier]
    for name in ("row", "column"):
        words += [word for label in getattr(options, name) or () for word in (f"--{name}", label)]
    words += ["--seeds", ",".join(map(str, options.seeds))] if options.seeds else []
    return shlex.join(words)


def _cost_columns(cells: Sequence[Cell], cost: gpu.GpuCost, gpus: int) -> list[str]:
    memory = gpu.rounded(cost.gigabytes) if cost.hours else ""
    disk = gpu.rounded(cost.disk) if cost.hours else ""
    on_all = _hours_text(cost.hours_on(gpus), cost)
    return [f"{len(cells):,}", _hours_text(cost.hours, cost), on_all, memory, disk]


def _hours_text(hours: float, cost: gpu.GpuCost) -> str:
    """Hours, with a plus where they are not all."""
    if cost.missing and not hours:
        return "unknown"
    return gpu.rounded(hours) + "+" * bool(cost.missing)


def _notes(
    whole: gpu.GpuCost, by_hand: Sequence[str], unsized: Sequence[str], options: Namespace
) -> Iterator[str]:
    yield from (f"{remedy}." for remedy in by_hand)
    yield (
        "Hours and memory are of training on H100s, as docs/expected.csv estimates them; what "
        "several tables train is in the first of them. Evaluations come on top, for which there "
        f"is no estimate. On a machine with several GPUs that many cells run at a time; on a "
        f"cluster add --slurm --gpus 1 --array-limit {options.gpus}."
    )
    if whole.missing:
        yield f"Not estimated: {counted(whole.missing, 'training')}."
    if whole.gigabytes > gpu.MEMORY:
        yield f"What takes more than {gpu.MEMORY} GB is one run on several GPUs, docs/clusters.md."
    if unsized:
        yield f"The disk is without data of unknown size: {', '.join(unsized)}."
