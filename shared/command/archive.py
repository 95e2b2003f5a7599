"""An archive of what was made on another machine, and taking it in after a look at all of it.

    manifest.json      schema, commit, device, when; of every other file its SHA-256 and size; what
                       was left out for its size; and a SHA-256 of all that
    proof.json         what ``prove`` found, see shared.command.prove; proof.md says it in words
    logs/              what was printed on the way
    runs/ADDRESS/      finished runs, but for checkpoints and event files

:func:`take_in` takes nothing on trust: files are as the manifest says, the commit is in this copy's
history, every record is as it was written, made by a clean commit, and counts for a cell as it is
declared today. What does not hold is named and left out.
"""

import dataclasses
import hashlib
import json
import subprocess
import tempfile
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from shared.command import verify
from shared.command.domains import every_table
from shared.command.places import Places
from shared.errors import UserError, describe_os_error
from shared.experiment.records import Damaged, Record, read_record
from shared.experiment.runs import replacing, write_atomically
from shared.experiment.tables import slug

SCHEMA = 1
MANIFEST = "manifest.json"
PROOF = "proof"  # the folder in results/ for what is proven of a device
FIELDS: Mapping[str, type] = {
    "schema": int,
    "commit": str,
    "device": str,
    "made": str,
    "files": dict,
    "left_out": dict,
    "sha256": str,
}
LARGEST = 10**9  # bytes of one file; nothing that is packed comes near
# Of a run: what is of use to nobody but the run itself, and what its log says, too.
LEFT = ("checkpoint.pt", "checkpoint.previous.pt", ".lock", "tensorboard", "replay")


def pack(
    file: Path,
    content: Mapping[str, Path | str],
    *,
    commit: str,
    device: str,
    made: str,
    largest: int,
) -> dict[str, int]:
    """Write an archive, moved into place when it is whole; returns what was left out, in bytes.

    Args:
        file: the archive.
        content: by name in the archive, a file or a text.
        commit: that everything was made at.
        device: that it was made on.
        made: when.
        largest: files of more bytes are left out, and named in the manifest.
    """
    files: dict[str, dict[str, Any]] = {}
    left_out: dict[str, int] = {}
    file.parent.mkdir(parents=True, exist_ok=True)
    with replacing(file) as part, zipfile.ZipFile(part, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, item in sorted(content.items()):
            if isinstance(item, Path) and item.stat().st_size > largest:
                left_out[name] = item.stat().st_size
                continue
            data = item.encode() if isinstance(item, str) else item.read_bytes()
            files[name] = {"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)}
            archive.writestr(name, data)
        manifest = {
            "schema": SCHEMA,
            "commit": commit,
            "device": device,
            "made": made,
            "files": files,
            "left_out": left_out,
        }
        manifest["sha256"] = _hash(manifest)
        archive.writestr(MANIFEST, json.dumps(manifest, indent=1) + "\n")
    return left_out


def files_of_run(folder: Path, address: str) -> dict[str, Path]:
    """The files of a finished run that are packed, by their names in an archive."""
    return {
        f"runs/{address}/{path.relative_to(folder).as_posix()}": path
        for path in sorted(folder.rglob("*"))
        if path.is_file()
        and path.relative_to(folder).parts[0] not in LEFT
        and path.suffix != ".part"
    }


def take_in(file: Path, places: Places) -> int:
    """Take the records of an archive into ``places.results``; returns the exit code.

    Prints a line for what was kept as it was, and one to stderr for each record that is refused.

    Raises:
        UserError: the archive as a whole cannot be believed: it is none, is damaged, or was made
            at a commit that this copy's history does not have.
    """
    from shared.command import verbs

    with tempfile.TemporaryDirectory() as folder:
        manifest = unpack(file, Path(folder))
        here = dataclasses.replace(places, runs=Path(folder) / "runs")
        taken, faults = _sift(here, file)
        if taken:
            verbs.write_results(here)
        said = _take_proof(Path(folder), manifest, places.results)
    print(f"{file}: made at {manifest['commit'][:12]} on {manifest['device']}")
    print(f"{len(taken)} records taken into {places.results}/{''.join(f'; {x}' for x in said)}")
    return verbs.print_faults(faults)


def unpack(file: Path, folder: Path) -> dict[str, Any]:
    """Check an archive as a whole and unpack it; returns the manifest.

    Raises:
        UserError: as :func:`take_in`.
    """
    again = "copy it again, or pack it again with ./reproduce.sh prove"
    try:
        with zipfile.ZipFile(file) as archive:
            manifest = _manifest(archive, file)
            names = set(archive.namelist()) - {MANIFEST}
            if odd := sorted(names ^ set(manifest["files"])):
                raise UserError(f"{file}: {odd[0]} is not what its manifest lists; {again}")
            _check_history(manifest["commit"], file)
            for name, said in manifest["files"].items():
                _unpack_one(archive, name, said, folder, f"{file}: {name}", again)
    except (zipfile.BadZipFile, EOFError) as error:
        raise UserError(f"{file} is no archive, or not all of one ({error}); {again}") from None
    except FileNotFoundError:
        raise UserError(f"no archive {file}; ./reproduce.sh prove says where it puts it") from None
    except OSError as error:
        raise UserError(describe_os_error(error)) from None
    return manifest


def _unpack_one(
    archive: zipfile.ZipFile,
    name: str,
    said: Mapping[str, Any],
    folder: Path,
    where: str,
    again: str,
) -> None:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or "\\" in name:
        raise UserError(f"{where} leads out of the folder that it is unpacked to; do not trust it")
    if archive.getinfo(name).file_size > LARGEST:
        raise UserError(f"{where} is larger than anything that is packed; do not trust it")
    data = archive.read(name)
    if hashlib.sha256(data).hexdigest() != said.get("sha256"):
        raise UserError(f"{where} has another SHA-256 than its manifest says; {again}")
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(data)


def _manifest(archive: zipfile.ZipFile, file: Path) -> dict[str, Any]:
    try:
        manifest = json.loads(archive.read(MANIFEST))
    except KeyError:
        raise UserError(f"{file} has no {MANIFEST}: it is no archive of prove") from None
    except ValueError as error:
        raise UserError(f"{file}: {MANIFEST} is not JSON ({error})") from None
    if not isinstance(manifest, dict) or manifest.get("schema") != SCHEMA:
        schema = manifest.get("schema") if isinstance(manifest, dict) else None
        raise UserError(f"{file} has schema {schema!r}; this version takes {SCHEMA} in")
    for name, kind in FIELDS.items():
        if not isinstance(manifest.get(name), kind):
            raise UserError(f"{file}: {MANIFEST} lacks {name!r}")
    if manifest["sha256"] != _hash(manifest):
        raise UserError(f"{file}: {MANIFEST} was altered: its SHA-256 is that of another content")
    return manifest


def _hash(manifest: Mapping[str, Any]) -> str:
    content = {name: value for name, value in manifest.items() if name != "sha256"}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _check_history(commit: str, file: Path) -> None:
    """Refuse an archive whose commit is neither the one that is checked out nor before it."""
    root = Path(__file__).resolve().parents[2]
    command = ["git", "merge-base", "--is-ancestor", commit, "HEAD"]
    try:
        known = subprocess.run(command, cwd=root, capture_output=True, check=False).returncode == 0
    except OSError:
        raise UserError(f"{file}: no git here to look its commit up with; install git") from None
    if not known:
        raise UserError(
            f"{file} was made at commit {commit[:12]}, which is not in the history of what is "
            f"checked out here; fetch and merge that commit first"
        )


def _sift(places: Places, file: Path) -> tuple[list[Record], list[str]]:
    """The records that count, the only ones that stay in ``places.runs``, and what is wrong."""
    tables = every_table()
    records: dict[Path, Record] = {}
    faults: list[str] = []
    for result in sorted(places.runs.rglob("result.json")):
        address = result.parent.relative_to(places.runs).as_posix()
        try:
            record = read_record(result.parent, address)
        except Damaged as error:
            text = str(error).replace(f"{places.runs}/", "").removesuffix("; move the folder away")
            faults.append(f"{file}: {text}")
            continue
        assert record is not None  # its result was just found
        records[result.parent] = record
    on_record = {
        each.cell.address: each.record
        for each in verify.check(tables, places.results, places.runs / "none").counted
    }
    whys = verify.objections(tables, records.values())
    taken = []
    for folder, record in records.items():
        why = whys.get(record.address)
        there = on_record.get(record.address)
        if why:
            faults.append(f"{file}: {record.address} is refused: {why}")
        elif there is not None and there.sha256 != record.sha256:
            print(f"{record.address}: kept as it is on record; another run of it was not taken in")
        elif there is not None:
            print(f"{record.address}: on record already")
        else:
            taken.append(record)
            continue
        (folder / "result.json").unlink()
    for damaged in places.runs.rglob("result.json"):
        if damaged.parent not in records:
            damaged.unlink()
    return taken, faults


def _take_proof(folder: Path, manifest: Mapping[str, Any], results: Path) -> Iterable[str]:
    """Copy what was proven of a device beside the results; a CPU proves nothing of a GPU."""
    files = [folder / f"{PROOF}.{ending}" for ending in ("json", "md")]
    if not all(file.exists() for file in files):
        return []
    if manifest["device"] == "cpu":
        return ["what it says of a CPU is no proof, and stays in the archive"]
    target = results / PROOF / slug(manifest["device"])
    for file in files:
        write_atomically(target / file.name, file.read_text(encoding="utf-8"))
    return [f"the proof lies in {target}"]
