"""The verbs other than ``run`` and ``plan``.

matplotlib takes a while to import: only the verbs that draw do so.
"""

import contextlib
import dataclasses
import filecmp
import json
import sys
import tempfile
import time
from argparse import Namespace
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from shared.command import cells, verify
from shared.command.cells import Places, domain_of, find_cell, tables_of_paper
from shared.errors import UserError, program, suggestion
from shared.experiment.checkout import of_checkout
from shared.experiment.domain import EvaluationRequest
from shared.experiment.files import write_atomically
from shared.experiment.frame import Frame, Measurement, Origin, load
from shared.experiment.records import read_record
from shared.experiment.tables import Tier
from shared.report.console import empty_grid, say
from shared.report.measuring import measure, read_figures
from shared.report.wording import counted

if TYPE_CHECKING:
    from shared.report.pages import Results

README = "README.md"  # has the outcomes of the project's own results in short
TEXTS = (".md", ".csv")  # what verify --pages makes again and compares
EXPORTS = "exports"  # no committed files are there
# Options of evaluate that only some domains have.
DOMAIN_OPTIONS = (
    *("backbone", "stem", "prefix", "heads", "size", "statistics"),  # vision
    *("skip_damaged", "split"),
)


def report(places: Places, *, replace: bool = False) -> int:
    """Write results/ from its records and every finished run; print a sentence for each paper.

    With ``replace`` runs take the place of the records of their cells, which else stay. Returns the
    exit code, 1 if a run is damaged.
    """
    from shared.report import pages

    frame = whole_frame(places, records_stay=not replace)
    for line in _measured_twice(frame, replace=replace):
        print(line)
    results = write_results(places, frame)
    written = sum(bool(measured.records) for measured in results.tables)
    for paper in pages.PAPERS:
        print(pages.sentence(results, paper))
    print(f"{counted(written, 'table')}; the summary of all: {places.results / pages.SUMMARY}")
    return print_faults([str(error) for _, error in frame.damaged])


def whole_frame(places: Places, *, records_stay: bool = True) -> Frame:
    """The cells of all tables but for the smoke tier, with their records and runs."""
    frame = load(
        cells.every_table(),
        runs=places.runs,
        results=places.results,
        tiers=("paper", "short"),
        records_stay=records_stay,
    )
    frame.check("record")
    return frame


def write_results(places: Places, frame: Frame, *, to: Path | None = None) -> "Results":
    """Write pages, pictures, CSV files and records below ``places.results``, or another folder."""
    from shared.report import claims, files, pages

    to = to or places.results
    tables = [
        measure(table, tier, frame.of(table, tier), read_figures(places.results, table, tier))
        for table in cells.every_table()
        for tier in table.tiers
        if tier != "smoke"
    ]
    judged = claims.judged(tables, claims.read_shares(places.results))
    results = pages.Results(tables, judged, claims.read_costs(places.results))
    for measured in tables:
        if measured.records:
            files.write(to, measured, results.claims_on(measured))
    claims.write(to, judged)
    pages.write(to, results)
    if to.resolve() == of_checkout("results").resolve() and of_checkout(README).exists():
        pages.write_in_short(of_checkout(README), results)
    return results


def _measured_twice(frame: Frame, *, replace: bool) -> Iterator[str]:
    """Lines on cells that have a committed record and another, finished run."""
    found: dict[Origin, dict[tuple[str, str], Measurement]] = {"record": {}, "run": {}}
    for line in frame:
        if (measured := line.measurement) is not None and line.source is not None:
            cell = measured.cell
            found[line.source.origin][cell.address, cell.column] = measured
    both = ((old, found["run"].get(cell)) for cell, old in found["record"].items())
    pairs = [(old, new) for old, new in both if new and new.record.sha256 != old.record.sha256]
    for old, new in pairs if replace else ():
        yield f"{new.cell.address}: {_number_text(old)} is replaced by {_number_text(new)}"
    if pairs and not replace:
        tables = ", ".join(dict.fromkeys(old.table.address for old, _ in pairs))
        yield (
            f"{tables}: {counted(len(pairs), 'number')} recorded before and run here, too: the "
            f"records stay. --replace takes the runs; --results FOLDER writes your tables beside"
        )


def _number_text(measured: Measurement) -> str:
    """The number that a cell shows, and the commit that it was measured at."""
    table, cell, record = measured.table, measured.cell, measured.record
    metric = table.metric_of(table.column_of(cell.tier, cell.column))
    commit = str(record.environment["commit"])[:7]
    return f"{metric} {record.result['metrics'][metric]:.2f} ({commit})"


def verify_records(domain: str | None, places: Places, options: Namespace) -> int:
    """Check records and finished runs; with ``--rerun`` run some recorded cells again."""
    console = Console()
    checked = verify.check(cells.every_table(domain), places.results, places.runs, domain)
    console.print(verify.summary(checked))
    faults = [*checked.faults, *(_outdated_pages(places) if options.pages else ())]
    for note in checked.notes:
        print(f"note: {note}")
    if options.rerun:
        compared = 0
        for outcome in verify.run_again(checked.matched, places, options, console):
            text = ": ".join(filter(None, (outcome.address, outcome.text)))
            compared += outcome.compared
            if outcome.fault:
                faults.append(text)
            else:
                print(text)
        if not compared:
            faults.append("nothing was compared: no chosen cell could be run again and compared")
    if not faults:
        print("no fault found")
    return print_faults(faults)


def _outdated_pages(places: Places) -> list[str]:
    """The texts and CSV files below ``results`` that are not what the committed records give."""
    with tempfile.TemporaryDirectory() as folder:
        to = Path(folder) / "results"
        frame = whole_frame(dataclasses.replace(places, runs=Path(folder) / "runs"))
        write_results(places, frame, to=to)
        names = {
            str(name)
            for root in (places.results, to)
            for kind in TEXTS
            for file in root.rglob(f"*{kind}")
            if "figures" not in (name := file.relative_to(root)).parts
        }
        _, differing, one_sided = filecmp.cmpfiles(places.results, to, names, shallow=False)
    return [
        f"{places.results / name} is not what the records give: {program()} report writes it, or "
        f"delete it"
        for name in sorted((*differing, *one_sided))
    ]


def print_faults(faults: Sequence[str]) -> int:
    """Print each fault as a line on stderr; returns the exit code."""
    for fault in faults:
        print(f"fault: {fault}", file=sys.stderr)
    return 1 if faults else 0


def draw(domain: str, paper: str, places: Places, to: Path | None) -> int:
    """Draw the figures of a paper, and print their paths."""
    from shared.report.figures import write as write_figures

    tables_of_paper(domain, paper)
    figures = domain_of(domain).figures
    if figures is None:
        raise UserError(f"{domain} draws no figures")
    to = to or of_checkout(EXPORTS) / "figures"
    folders = (places.runs, places.results, places.data, to)
    files = write_figures(domain_of(domain).tables, figures(), paper, *folders)
    if not files:
        raise UserError(f"{domain}/{paper}: no figure can be drawn")
    print(*files, sep="\n")
    return 0


def film(domain: str, paper: str, tier: Tier, places: Places) -> int:
    """Film the finished runs of a paper in a tier, and print the paths of the films."""
    tables_of_paper(domain, paper)
    record_video = domain_of(domain).film
    if record_video is None:
        raise UserError(f"{domain} films nothing")
    files = record_video(paper, tier, places.runs)
    if not files:
        raise UserError(f"there is no policy to film: no finished run of {domain}/{paper}, {tier}")
    print(*files, sep="\n")
    return 0


def export(run: str, domain: str | None, to: Path | None, places: Places) -> int:
    """Write the model of a finished run, given by folder or address, and print its path."""
    folder = Path(run).expanduser()
    if (folder / "config.json").exists():
        address = Path(folder.resolve().name)
        with contextlib.suppress(ValueError):  # it is elsewhere
            address = folder.resolve().relative_to(places.runs.resolve())
    else:
        try:
            (cell,) = find_cell(run).cells
        except UserError as error:
            raise UserError(f"no folder of a run, and no cell, {run!r}: {error}") from None
        address, folder = Path(run), places.runs / cell.folder
        if not (folder / "config.json").exists():
            raise UserError(f"{run} has no run in {places.runs}/; run it with --cell {run}")
    domain = domain or next((part for part in address.parts if part in cells.DOMAINS), None)
    if domain is None:
        raise UserError(f"{folder} is in no domain's folder; name the domain with --domain")
    write = domain_of(domain).export
    if write is None:
        raise UserError(f"{domain} exports no models")
    if read_record(folder, str(address)) is None:
        raise UserError(f"{folder}: the run is not finished; it needs a result.json to be exported")
    print(write(folder, to or of_checkout(EXPORTS) / address))
    return 0


def fetch(domain: str, dataset: str | None, places: Places, side: int | None) -> int:
    """Download missing datasets and verify the others; print a line for each.

    With ``side``, decode the images of the dataset with so many pixels of the shorter side.
    """
    provider = domain_of(domain)
    if side is not None and provider.prepare is None:
        raise UserError(f"{domain} prepares its data when they are first used; omit --prepare")
    if side is not None and dataset is None:
        raise UserError("--prepare is for one dataset; name it with --dataset")
    datasets = provider.datasets()
    if dataset is not None and dataset not in datasets:
        known = suggestion(dataset, datasets, "it has")
        raise UserError(f"{domain} has no dataset {dataset!r}{known}")
    failed = False
    for name in [dataset] if dataset is not None else datasets:
        started = time.monotonic()
        try:
            content = provider.fetch(name, places.data)
            if side is not None and provider.prepare is not None:
                provider.prepare(name, places.data, side)
        except UserError as error:
            failed = True
            print(error, file=sys.stderr)
            continue
        print(f"{name}: ready in {places.data} ({time.monotonic() - started:.1f} s)")
        if content:
            print(content)
    return 1 if failed else 0


def evaluate(name: str, model: Path, options: Namespace, places: Places) -> int:
    """Score a model with protocols of a domain, print the numbers, write them with ``--out``."""
    domain = domain_of(name)
    if domain.score is None:
        raise UserError(f"{name} cannot score models; vision, text, graph and video can")
    domain_options = {
        option: str(value)
        for option in DOMAIN_OPTIONS
        if (value := getattr(options, option)) is not None
    }
    if unknown := sorted(domain_options.keys() - set(domain.scored_by)):
        option = unknown[0].replace("_", "-")
        raise UserError(f"{name} has no --{option} in evaluate; omit it")
    out: Path | None = options.out
    if out is not None and out.resolve().is_relative_to(places.results.resolve()):
        raise UserError(f"--out {out}: this folder is for runs of the tables; choose another")
    if not model.exists():
        raise UserError(f"{model}: there is no such file or folder; give a trained model")
    console = Console()
    request = EvaluationRequest(
        model=model,
        data=options.data,
        protocols=options.protocol,
        data_root=places.data,
        seed=options.seed,
        options=domain_options,
        say=partial(say, console),
    )
    try:
        scores = domain.score(request)
    except (ValueError, FloatingPointError) as error:  # caused by the user's data or network
        on = f" on {options.data}" if options.data else ""
        raise UserError(f"{model}{on}: {error}") from error
    grid = empty_grid(("protocol", "metric", "value"), left=("protocol", "metric"))
    for protocol, score in scores.protocols.items():
        for metric, value in score["metrics"].items():
            if isinstance(value, int | float):
                grid.add_row(protocol, metric, f"{value:.2f}")
    console.print(grid)
    if out is not None:
        content = {"domain": name, "seed": options.seed, **scores.facts}
        content["protocols"] = scores.protocols
        out.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(out, json.dumps(content, indent=2) + "\n")
        say(console, f"written to {out}")
    return 0
