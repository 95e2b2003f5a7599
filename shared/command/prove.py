"""Proof and results from a borrowed GPU, in slices of a few minutes.

What there is to do is cut into pieces, each a command of its own: the tests that need CUDA, file by
file; a step of every domain beside the same step on the CPU; a speed for each target; then cells of
the paper tier, what is worth most a minute first. The same command goes on where the last slice
ended: a piece that was cut is begun anew, a cell goes on from its checkpoint. What was made at
another commit, or on another kind of device, does not count as done.

    runs/.prove/DEVICE-COMMIT/NAME.json    how a piece went, and what it found
    runs/.prove/DEVICE-COMMIT/NAME.log     what it printed
    exports/proof-DEVICE-COMMIT.zip        all of it and the finished runs, after every slice
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import filelock

from shared.command import slurm, verify, worth
from shared.command.archive import PROOF, files_of_run, pack
from shared.command.domains import every_table, present_domains
from shared.command.places import Places, finished, run_folder
from shared.command.plan import costs_of
from shared.command.pool import asked_to_stop
from shared.command.progress import duration
from shared.command.reproduce import PARTS
from shared.command.targets import TARGETS, Target
from shared.errors import UserError
from shared.experiment.records import Damaged, read_failure, read_json
from shared.experiment.runs import INTERRUPTED, commit, environment, now, write_atomically
from shared.experiment.tables import Cell, slug
from shared.report.measuring import NOT_RUN

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ".prove"  # in the folder of runs
MARK = "mark.cuda"  # what stands in the files with tests that need CUDA
PACKING, SAVING = 20.0, 40.0  # seconds of a slice to pack in, and for a cell to save in
SHARES = (1 / 20, 1 / 10)  # of the slice that these are at most


class Slice:
    """The minutes of one call: when pieces are told to stop, and when they are killed."""

    def __init__(self, minutes: float) -> None:
        seconds = 60 * minutes
        packing, saving = (
            min(most, share * seconds)
            for most, share in zip((PACKING, SAVING), SHARES, strict=True)
        )
        self.began = time.monotonic()
        self.kill = self.began + seconds - packing
        self.stop = self.kill - saving

    @property
    def left(self) -> float:
        """Seconds until pieces are told to stop."""
        return self.stop - time.monotonic()


@dataclass(frozen=True)
class Piece:
    """Something to do that is one command.

    Args:
        part: of ``PARTS``.
        name: of its files.
        command: that does it; ``{out}`` in it is the file that it writes what it found to.
    """

    part: str
    name: str
    command: tuple[str, ...]


class Proof:
    """What is proven of one kind of device at one commit, and one slice of proving more.

    Args:
        places: where runs, results and data lie.
        device: name of the device, "cpu" for the processor.
        where: the commit and whether it is clean.
        options: of the command line.
        asked: fills when somebody asks the whole to stop.
    """

    def __init__(
        self,
        places: Places,
        device: str,
        where: Mapping[str, Any],
        options: Namespace,
        asked: list[int],
    ) -> None:
        self.places, self.device, self.options, self.asked = places, device, options, asked
        self.commit = str(where["commit"])
        self.name = f"{slug(device)}-{self.commit[:12]}"
        self.home = places.runs / FOLDER / self.name
        self.slice = Slice(options.minutes)
        self.unfinished = False
        self._fresh = True  # nothing was run in this slice

    @property
    def over(self) -> bool:
        """Whether the slice has ended, or somebody asked for it to."""
        return bool(self.asked) or self.slice.left <= 0

    def do(self, piece: Piece) -> dict[str, Any] | None:
        """Do a piece, unless it is done; gives how it went, None if the slice ended before it did.

        A piece that took a whole slice and was cut is not tried again: it would never end.
        """
        file = self.home / f"{piece.name}.json"
        if file.exists():
            past = read_json(file)
            if not (self.options.again and past["state"] in ("failed", "cut")):
                return past
            file.unlink()
        if self.over:
            self.unfinished = True
            return None
        out, log = self.home / f".{piece.name}.out", self.home / f"{piece.name}.log"
        out.unlink(missing_ok=True)
        whole, self._fresh = self._fresh, False
        print(f"{piece.part}: {piece.name} ...", end=" ", flush=True)
        began = time.monotonic()
        code = self.run([word.replace("{out}", str(out)) for word in piece.command], log)
        seconds = time.monotonic() - began
        found: dict[str, Any] = {
            "part": piece.part,
            "name": piece.name,
            "state": "done" if code == 0 else "failed",
            "seconds": round(seconds, 1),
            "why": "" if code == 0 else last_line(log),
        }
        if code is None:
            if not whole or self.asked:
                print(f"cut after {duration(seconds)}; it is begun anew by the same command")
                self.unfinished = True
                return None
            why = f"not done within a slice of {self.options.minutes:g} minutes; give it more"
            found |= {"state": "cut", "why": f"{why} with --minutes, and --again"}
        elif piece.part == "tests":
            found |= tests_of(out, found)
        elif out.exists():
            found |= read_json(out)
        out.unlink(missing_ok=True)
        write_atomically(file, json.dumps(found, indent=1) + "\n")
        print(": ".join(filter(None, (f"{found['state']} in {duration(seconds)}", found["why"]))))
        return found

    def run(self, command: Sequence[str], log: Path, *, saves: bool = False) -> int | None:
        """The exit code of a command; None of one that the end of the slice has stopped.

        Args:
            command: what to run.
            log: where what it prints goes.
            saves: whether it saves itself when it is told to stop; it gets time to.
        """
        # Unbuffered: else what it prints comes after its last word in the log.
        variables = {"SUITE_DATA": str(self.places.data.absolute()), "PYTHONUNBUFFERED": "1"}
        if self.device == "cpu":  # also where there is a GPU
            variables["CUDA_VISIBLE_DEVICES"] = ""
        log.parent.mkdir(parents=True, exist_ok=True)
        stopped = False
        with (
            log.open("ab") as stream,
            # Ctrl-C reaches this process alone, which then tells the other.
            subprocess.Popen(
                command,
                stdout=stream,
                stderr=subprocess.STDOUT,
                env=os.environ | variables,
                start_new_session=True,
            ) as child,
        ):
            while child.poll() is None:
                if self.over and saves and not stopped:
                    child.terminate()
                stopped |= self.over
                with contextlib.suppress(subprocess.TimeoutExpired, ProcessLookupError):
                    if stopped and (not saves or time.monotonic() > self.slice.kill):
                        os.killpg(child.pid, signal.SIGKILL)  # and what it has started
                    child.wait(0.1)
        return None if stopped or child.returncode == INTERRUPTED else child.returncode


def prove_slice(options: Namespace, places: Places) -> int:
    """Prove what a slice of minutes is enough for, and pack it; returns the exit code.

    Raises:
        UserError: no GPU, no clean commit, no checkout, or another such command is at work.
    """
    device = _device(options.device)
    where = commit()
    if where["dirty"]:
        raise UserError(
            f"what is made at commit {where['commit'][:12]} with changes (or without git) could "
            f"not be taken in anywhere; commit them, or copy the checkout with its .git"
        )
    if not all((ROOT / name).is_dir() for name in ("tests", "benchmarks")):
        raise UserError(f"{ROOT} has no tests/ or benchmarks/; prove needs a whole checkout")
    with asked_to_stop() as asked:
        proof = Proof(places, device, where, options, asked)
        proof.home.mkdir(parents=True, exist_ok=True)
        try:
            lock = filelock.FileLock(proof.home / ".lock", timeout=0)
            lock.acquire()
        except filelock.Timeout:
            raise UserError(f"{proof.home}: another prove is at work there; wait for it") from None
        try:
            print(f"{device}, commit {proof.commit[:12]}, {options.minutes:g} minutes", flush=True)
            found = [piece for each in pieces(options, device) if (piece := proof.do(each))]
            found += _do_cells(proof) if "cells" in options.only else []
            archive = _pack(proof, found)
        finally:
            lock.release()
    print(f"packed in {archive}; take it in elsewhere with ./reproduce.sh adopt {archive.name}")
    if proof.unfinished or asked:
        print("not all is done; the same command goes on from here")
        return INTERRUPTED
    wrong = [each for each in found if each["state"] not in ("done", "left out")]
    for each in wrong:
        print(f"{each['name']}: {each['state']}: {each['why']}", file=sys.stderr)
    return 1 if wrong else 0


def pieces(options: Namespace, device: str) -> Iterator[Piece]:
    """All pieces but the cells, in the order in which they are done."""
    python, kind = sys.executable, "cpu" if device == "cpu" else "cuda"
    if "tests" in options.only:
        for file in sorted((ROOT / "tests").rglob("test_*.py")):
            if MARK in file.read_text(encoding="utf-8"):
                name = "-".join(file.relative_to(ROOT / "tests").with_suffix("").parts)
                words = ("-m", "cuda", "-p", "no:cacheprovider", "--junitxml={out}")
                yield Piece("tests", f"tests-{name}", (python, "-m", "pytest", str(file), *words))
    if "agreement" in options.only:
        script = str(ROOT / "benchmarks" / "agreement.py")
        for domain in present_domains():
            if (ROOT / domain / "train.py").exists():
                words = (domain, "--device", kind, "--out", "{out}")
                yield Piece("agreement", f"agreement-{domain}", (python, script, *words))
    if "speed" in options.only:
        script = str(ROOT / "benchmarks" / "targets.py")
        for target in TARGETS:
            words = (target.name, "--device", kind, "--out", "{out}")
            yield Piece("speed", f"speed-{target.name}", (python, script, *words))


def tests_of(out: Path, found: Mapping[str, Any]) -> dict[str, Any]:
    """How many tests of a file passed, and which did not, from pytest's report."""
    if not out.exists():
        return {"state": "failed", "why": found["why"] or "pytest gave no report"}
    counts = {"passed": 0, "failed": 0, "skipped": 0}
    wrong = []
    for case in ElementTree.parse(out).getroot().iter("testcase"):
        bad = [each for each in case if each.tag in ("failure", "error")]
        skipped = any(each.tag == "skipped" for each in case)
        counts["failed" if bad else "skipped" if skipped else "passed"] += 1
        if bad:
            message = str(bad[0].get("message", "")).partition("\n")[0]
            wrong.append(f"{case.get('name')}: {message[:200]}")
    state = "failed" if wrong or not sum(counts.values()) else "done"
    if state == "done" and not counts["passed"]:
        state = "left out"  # without a GPU
    said = ", ".join(f"{count} {name}" for name, count in counts.items() if count)
    return {"state": state, "counts": counts, "wrong": wrong, "why": "; ".join([said, *wrong])}


def ranked(
    bundles: Sequence[worth.Bundle], minutes: Mapping[str, float], begun: Sequence[str]
) -> list[worth.Bundle]:
    """Bundles in the order in which they are done: begun ones, then by verdicts a minute.

    Args:
        bundles: in the order that decides between equals.
        minutes: what is left of each, by name; those with nothing left are left out.
        begun: names of those of which a cell is in the middle.
    """
    left = [bundle for bundle in bundles if minutes.get(bundle.name, 0) > 0]
    return sorted(
        left,
        key=lambda each: (
            each.name not in begun,
            -worth.verdicts_of(each) / minutes[each.name],
        ),
    )


def _do_cells(proof: Proof) -> list[dict[str, Any]]:
    """Run cells until the slice is over; how those went that will have no result."""
    places = proof.places
    on_record = _on_record(places)
    costs = _Costs(proof)
    waiting: dict[str, list[Cell]] = {}
    minutes: dict[str, float] = {}
    begun = []
    for bundle in worth.BUNDLES:
        if proof.over:
            proof.unfinished = True
            return []
        cells = [
            cell
            for cell in worth.cells_of(bundle)
            if cell.address not in on_record and finished(cell, places) is None
        ]
        waiting[bundle.name] = cells
        if cells:
            minutes[bundle.name] = max(1e-3, sum(costs.seconds(bundle, cells)) / 60)
        if any((run_folder(places, cell) / "checkpoint.pt").exists() for cell in cells):
            begun.append(bundle.name)
    failed: list[dict[str, Any]] = []
    for bundle in ranked(worth.BUNDLES, minutes, begun):
        verdicts = worth.verdicts_of(bundle)
        about = f"{len(waiting[bundle.name])} cells, about {duration(60 * minutes[bundle.name])}"
        print(f"cells: {bundle.name}: {about}, {verdicts} verdicts; {bundle.why}", flush=True)
        for cell in waiting[bundle.name]:
            went = _do_cell(proof, cell)
            if went is None:
                proof.unfinished = True
                return failed
            if went["state"] != "done":
                failed.append(went)
            if went["why"].startswith(NOT_RUN):  # the data are missing, of the other cells, too
                break
    return failed


def _do_cell(proof: Proof, cell: Cell) -> dict[str, Any] | None:
    """Run one cell; None if the slice ended before it did."""
    file = proof.home / f"cell-{slug(cell.address)}.json"
    if file.exists() and not proof.options.again:
        return read_json(file)
    if proof.over:
        return None
    if finished(cell, proof.places) is not None:  # in an earlier bundle
        return {"part": "cells", "name": cell.address, "state": "done", "why": ""}
    print(f"  {cell.address} ...", end=" ", flush=True)
    places, began = proof.places, time.monotonic()
    where = {"--runs": places.runs, "--results": places.results, "--data-root": places.data}
    words = [word for name, path in where.items() for word in (name, str(path.absolute()))]
    if proof.options.no_download:
        words.append("--no-download")
    command = [sys.executable, "-m", slurm.MODULE, "--cell", cell.address, *words]
    log = file.with_suffix(".log")
    code = proof.run(command, log, saves=True)
    seconds = duration(time.monotonic() - began)
    if finished(cell, places) is not None:
        print(f"done in {seconds}")
        return {"part": "cells", "name": cell.address, "state": "done", "why": ""}
    if code is None:
        print(f"stopped after {seconds}; it goes on from its checkpoint")
        return None
    try:
        why = read_failure(run_folder(places, cell)) or last_line(log)
    except Damaged as error:
        why = str(error)
    print(why)
    missing = why.startswith(NOT_RUN)
    went = {
        "part": "cells",
        "name": cell.address,
        "state": "left out" if missing else "failed",
        "seconds": round(time.monotonic() - began, 1),
        "why": why,
    }
    if not missing:  # data may come; what failed fails again
        write_atomically(file, json.dumps(went, indent=1) + "\n")
    return went


class _Costs:
    """Seconds of cells on this device, kept from slice to slice: asking costs some, too."""

    def __init__(self, proof: Proof) -> None:
        self.proof, self.file = proof, proof.home / "costs.json"
        self.known: dict[str, float] = read_json(self.file) if self.file.exists() else {}

    def seconds(self, bundle: worth.Bundle, cells: Sequence[Cell]) -> Iterator[float]:
        """Of each cell."""
        places, table = self.proof.places, worth.table_of(bundle)
        if any(_row_of(cell) not in self.known for cell in cells):
            costs = costs_of(table, cells, places)
            for cell in cells:
                self.known[_row_of(cell)] = costs[cell.row, cell.source].each.seconds
            write_atomically(self.file, json.dumps(self.known, indent=1) + "\n")
        for cell in cells:
            yield self.known[_row_of(cell)]


def _row_of(cell: Cell) -> str:
    return cell.address.rpartition("/")[0]


def _on_record(places: Places) -> set[str]:
    """The addresses of the cells that a committed record counts for."""
    checked = verify.check(every_table(), places.results, places.runs / FOLDER / "none")
    return {each.cell.address for each in checked.counted}


def _pack(proof: Proof, found: Sequence[Mapping[str, Any]]) -> Path:
    """Write the archive of all that is there by now, from this slice and from those before."""
    made, options = now(), proof.options
    past = [read_json(file) for file in proof.home.glob("*.json")]
    done = {each["name"]: each for each in past if "part" in each}
    done |= {each["name"]: each for each in found}
    order = sorted(done.values(), key=lambda each: (PARTS.index(each["part"]), each["name"]))
    facts = environment(workers=1)
    runs = {}
    for bundle in worth.BUNDLES:
        for cell in worth.cells_of(bundle):
            if finished(cell, proof.places) is not None:
                runs[cell.address] = run_folder(proof.places, cell)
    content: dict[str, Any] = {
        "device": proof.device,
        "commit": proof.commit,
        "made": made,
        "versions": facts["versions"],
        "hardware": facts["hardware"],
        "pieces": order,
        "cells": sorted(runs),
        "unfinished": proof.unfinished,
    }
    packed: dict[str, Path | str] = {
        f"{PROOF}.json": json.dumps(content, indent=1) + "\n",
        f"{PROOF}.md": in_words(content),
        **{f"logs/{file.name}": file for file in proof.home.glob("*.log")},
    }
    for address, folder in runs.items():
        packed |= files_of_run(folder, address)
    target: Path = options.archive or Path("exports") / f"proof-{proof.name}.zip"
    left_out = pack(
        target,
        packed,
        commit=proof.commit,
        device=proof.device,
        made=made,
        largest=int(1e6 * options.largest),
    )
    for name, size in left_out.items():
        print(f"left out, over {options.largest:g} MB: {name} ({size / 1e6:.0f} MB)")
    return target


def in_words(proof: Mapping[str, Any]) -> str:
    """What is proven, as Markdown."""
    lines = [f"# What was proven on {proof['device']}", ""]
    lines += [f"At commit `{proof['commit']}`, {proof['made']}.", ""]
    by_part = {part: [x for x in proof["pieces"] if x["part"] == part] for part in PARTS}
    if tests := by_part["tests"]:
        lines += ["## Tests that need CUDA", "", *_row("file", "", "result"), *_rule(3)]
        lines += [line for x in tests for line in _row(x["name"], x["state"], x["why"])]
        lines.append("")
    if agreement := by_part["agreement"]:
        lines += ["## One step here and on the CPU", ""]
        lines += _row("domain", "", "steps", "largest share of its tolerance", "where")
        lines += _rule(5)
        for x in agreement:
            worst = x.get("worst") or {}
            share = f"{worst['share']:.2g}" if worst else x["why"]
            lines += _row(
                x["name"], x["state"], len(x.get("steps", ())), share, worst.get("what", "")
            )
        lines.append("")
    if speed := by_part["speed"]:
        lines += ["## Speed", "", *_row(*SPEED), *_rule(len(SPEED))]
        by_name = {target.name: target for target in TARGETS}
        for x in speed:
            lines += _speed_row(x, by_name[x["name"].removeprefix("speed-")])
        lines.append("")
        for x in speed:
            if x.get("top"):
                lines += [f"What {x['name']} spends its time on:", "", *_row("operator", "share")]
                lines += _rule(2)
                lines += [line for name, share in x["top"] for line in _row(name, f"{share:.1%}")]
                lines.append("")
    if proof["cells"] or by_part["cells"]:
        lines += ["## Cells", "", f"{len(proof['cells'])} runs of the paper tier are packed."]
        lines += [f"- `{x['name']}`: {x['state']}: {x['why']}" for x in by_part["cells"]]
    return "\n".join(lines).rstrip() + "\n"


SPEED = ("target", "to reach", "measured", "", "TFLOP/s", "of the peak")


def _speed_row(found: Mapping[str, Any], target: Target) -> list[str]:
    bound = f"{'at least' if target.at_least else 'at most'} {target.bound:g} {target.unit}"
    if "value" not in found:
        return _row(target.what, bound, found["state"], found["why"], "", "")
    value = float(found["value"])
    judged = "met" if target.met(value) else f"missed, {target.missed_by(value):.2g} times too slow"
    if found.get("reduced"):
        judged = "not judged: made smaller for a CPU"
    rate, share = found.get("tflops"), found.get("share")
    return _row(
        target.what,
        bound,
        f"{value:.4g} {target.unit}",
        judged,
        f"{rate:.3g}" if rate else "",
        f"{share:.1%}" if share else "",
    )


def _row(*cells: object) -> list[str]:
    return ["| " + " | ".join(str(cell).replace("|", "\\|") for cell in cells) + " |"]


def _rule(columns: int) -> list[str]:
    return ["|" + " --- |" * columns]


def last_line(log: Path) -> str:
    """The last line that says anything in a log."""
    lines = log.read_text(errors="replace").splitlines() if log.exists() else []
    return next((line.strip()[:300] for line in reversed(lines) if line.strip()), "without a word")


def _device(kind: str) -> str:
    """The name of the device that is proven.

    Raises:
        UserError: torch sees no GPU.
    """
    if kind == "cpu":
        return "cpu"
    import torch

    if not torch.cuda.is_available():
        build = f"torch {torch.__version__}"
        raise UserError(
            f"{build} sees no GPU here, and prove is for one; look at nvidia-smi and at the build "
            f"of torch, or try the way itself with --device cpu"
        )
    return torch.cuda.get_device_name()
