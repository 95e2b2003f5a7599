"""Pretrained models that several cells share: trained once, kept by what they were trained as.

    runs/encoders/KEY/   record.json, pretraining.jsonl (the log), SHA256SUMS, the domain's files

KEY is over the pretraining part of the configuration and over the data, so that what differs in
the evaluation alone finds the same entry. An entry is there as a whole or not at all; of several
processes that want one, one trains and the others wait. One whose sums are wrong is refused with a
line, and trained again.
"""

import hashlib
import json
import shutil
import warnings
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from shared.distributed import everyone
from shared.errors import UserError
from shared.experiment.data import SUMS, check_sums, sha256_of, write_sums
from shared.experiment.prepared import build_once
from shared.experiment.records import read_json
from shared.experiment.runs import LOG, Run, commit, now, replacing, write_atomically
from shared.experiment.tables import Config, canonical, canonical_json

FOLDER = "encoders"  # below the folder of runs
RECORD = "record.json"
CURVE = "pretraining.jsonl"  # not as a run's log is called: an entry is no run
FACT, SAVED = "encoder", "encoder_seconds"  # of a run's environment: see :func:`pretrained`


def part_of(config: Config, fields: Iterable[str]) -> dict[str, Any]:
    """The named fields of a configuration, canonical."""
    whole = canonical(config)
    return {name: whole[name] for name in fields if name in whole}


def key_of(part: Mapping[str, Any], data: Mapping[str, Any]) -> str:
    """What an entry is called: over the part, then over what it was trained on."""
    return f"{_digest(part)[:32]}-{_digest(data)[:16]}"


def is_kept(store: Path, part: Mapping[str, Any]) -> bool:
    """Whether there is an entry for a part, on whichever data; what is in it is not looked at."""
    return any(store.glob(f"{_digest(part)[:32]}-*/{RECORD}"))


def pretrained(
    run: Run,
    part: Mapping[str, Any],
    data: Mapping[str, Any],
    train: Callable[[], Callable[[Path], None]],
) -> Path:
    """The folder of what is pretrained as ``part`` says, by this run unless that was done.

    The run's record names the entry, and where another run trained it the seconds that it took,
    which are no part of this run's own.

    Args:
        run: with a store; what it logs while training is kept with the entry.
        part: the pretraining part of its configuration, canonical.
        data: what it is trained on.
        train: trains, and gives what writes the result into a folder. On several processes all
            call it, and the first alone gets on from there.

    Raises:
        Interrupted: the run was told to stop while it trained or waited.
        UserError: the store cannot be written.
    """
    assert run.store is not None
    key = key_of(part, data)
    folder = run.store / key
    here = False

    def build(target: Path) -> None:
        nonlocal here
        before = run.seconds
        write = train()
        _fill(target, run, key, part, data, write, before)
        here = True

    if run.processes > 1:
        # Nobody waits for a lock while others wait for him.
        (there, *_) = everyone(_is_whole(folder))
        write = None if there else train()
        run.alone()
        if write is not None:
            build_once(
                folder,
                lambda target: _fill(target, run, key, part, data, write, 0.0),
                (RECORD, SUMS),
                whole=_is_whole,
            )
            here = True
    else:
        build_once(folder, build, (RECORD, SUMS), whole=_is_whole, waiting=run.wait_for_another)
    run.record(**{FACT: key})
    if not here:
        said = read_json(folder / RECORD)
        run.record(**{SAVED: f"{said['seconds']:.3f}"})
        for notice in said["notices"]:
            run.keep_notice(notice)
        if (folder / CURVE).is_file():
            with replacing(run.folder / LOG) as target:
                shutil.copyfile(folder / CURVE, target)
    return folder


def seconds_alone(result: Mapping[str, Any], environment: Mapping[str, Any]) -> float:
    """What a finished run would have taken had it trained its encoder itself."""
    return float(result["seconds"]) + float(environment.get("facts", {}).get(SAVED, 0.0))


def forget(store: Path, environment: Mapping[str, Any]) -> None:
    """Delete the entry that a run used, if it names one: it is to be trained anew."""
    key = environment.get("facts", {}).get(FACT)
    if key is not None:
        shutil.rmtree(store / key, ignore_errors=True)


def _fill(
    target: Path,
    run: Run,
    key: str,
    part: Mapping[str, Any],
    data: Mapping[str, Any],
    write: Callable[[Path], None],
    before: float,
) -> None:
    """What an entry is made of: the domain's files, the log, the record, and the sums of all."""
    write(target)
    if (run.folder / LOG).is_file():
        shutil.copyfile(run.folder / LOG, target / CURVE)
    said = {
        "key": key,
        "config": part,
        "data": data,
        **commit(),
        "arithmetic": run.environment["arithmetic"],
        "seconds": round(run.seconds - before, 3),
        "notices": run.environment.get("notices", []),
        "finished": now(),
    }
    write_atomically(target / RECORD, json.dumps(said, indent=2) + "\n")
    names = sorted(path.name for path in target.iterdir() if path.is_file())
    write_sums(target, {name: sha256_of(target / name) for name in names})


def _is_whole(folder: Path) -> bool:
    """Whether an entry is there and as it was written; a damaged one is warned of."""
    if not (folder / SUMS).is_file():
        return False
    try:
        check_sums(folder, "it is trained again")
    except UserError as error:
        warnings.warn(str(error), stacklevel=2)
        return False
    return True


def _digest(value: Mapping[str, Any]) -> str:
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()
