"""Pretrained models that several cells share, stored by the configuration of their training.

    runs/encoders/KEY/   record.json, pretraining.jsonl (the log), SHA256SUMS, the domain's files

KEY is a hash of the pretraining part of the configuration and of the data, so that cells which
differ only in the evaluation share an entry. An entry is complete or missing; if several processes
need one, one trains it and the others wait. An entry with wrong sums is reported and trained again.
"""

import hashlib
import json
import shutil
import warnings
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shared.errors import UserError
from shared.experiment.checkout import commit, now
from shared.experiment.config import Config, canonical, canonical_json
from shared.experiment.data import SUMS, build_once, check_sums, sha256_of, write_sums
from shared.experiment.files import replacing, write_atomically
from shared.experiment.records import ENCODER_PROCESSOR, computed_on, read_json
from shared.experiment.run_folders import LOG, Interrupted

if TYPE_CHECKING:
    from shared.experiment.run import Run

FOLDER = "encoders"  # below the folder of runs
RECORD = "record.json"
CURVE = "pretraining.jsonl"  # unlike a run's log, since an entry is not a run
FACT, SAVED = "encoder", "encoder_seconds"  # of a run's environment: see :func:`pretrained`


def part_of(config: Config, fields: Iterable[str]) -> dict[str, Any]:
    """The named fields of a configuration, canonical."""
    whole = canonical(config)
    return {name: whole[name] for name in fields if name in whole}  # an option may not be


def key_of(part: Mapping[str, Any], data: Mapping[str, Any]) -> str:
    """The name of an entry: that of its encoder, then a hash of the data."""
    return f"{encoder_key(part)}-{_digest(data)[:16]}"


def encoder_key(part: Mapping[str, Any]) -> str:
    """A hash of the pretraining part of a configuration."""
    return _digest(part)[:32]


def is_stored(store: Path, encoder: str) -> bool:
    """Whether the store has a complete entry of an encoder, trained on whichever data."""
    return any(store.glob(f"{encoder}-*/{SUMS}"))


def pretrained(
    run: "Run",
    part: Mapping[str, Any],
    data: Mapping[str, Any],
    train: Callable[[], Callable[[Path], None]],
) -> Path:
    """The folder of the model pretrained as ``part`` says; this run trains it if it is missing.

    The run's record names the entry and, if another run trained it, the seconds that took, which
    this run's own time does not include, and what it was trained on where that is not what this run
    computes on. The log of the training is kept with the entry.

    ``part`` is that of the run's canonical configuration, ``data`` what it is trained on. ``train``
    returns a function that writes the result into a folder. With several processes all call it, and
    only the first continues.
    """
    assert run.store is not None
    key = key_of(part, data)
    folder = run.store / key
    built: list[Path] = []  # by this run
    write: Callable[[Path], None] | None = None

    def build(target: Path) -> None:
        before = run.seconds if write is None else 0.0
        (write or train())(target)
        _complete(target, run, key, part, data, run.seconds - before)
        built.append(target)

    def wait() -> None:
        run.progress(0, 1, "waiting for another run")
        if run.stopping:
            raise Interrupted

    if run.processes > 1:
        # No process may wait for a lock while others wait for it.
        from shared.distributed import all_gather_objects

        (stored, *_) = all_gather_objects(_is_whole(folder))
        write = None if stored else train()
        run.continue_on_rank_zero()
    build_once(folder, build, (RECORD, SUMS), whole=_is_whole, waiting=wait)
    run.record(**{FACT: key})
    if not built:
        entry = read_json(folder / RECORD)
        run.record(**{SAVED: f"{entry['seconds']:.3f}"})
        processor = computed_on(run.environment)
        trained_on = entry.get("processor", processor)  # older entries do not say
        if trained_on != processor:
            run.record(**{ENCODER_PROCESSOR: trained_on})
        for notice in entry["notices"]:
            run.keep_notice(notice)
        if (folder / CURVE).is_file():
            with replacing(run.folder / LOG) as target:
                shutil.copyfile(folder / CURVE, target)
    return folder


def discard(store: Path, environment: Mapping[str, Any]) -> None:
    """Delete the entry that a run used, if any, so that it is trained again."""
    key = environment.get("facts", {}).get(FACT)
    if key is not None:
        shutil.rmtree(store / key, ignore_errors=True)


def _complete(
    target: Path,
    run: "Run",
    key: str,
    part: Mapping[str, Any],
    data: Mapping[str, Any],
    seconds: float,
) -> None:
    """Add to the domain's files in an entry the log, the record, and the sums of all."""
    if wrong := _not_finite(target):
        raise FloatingPointError(
            f"the pretrained {wrong} is NaN or infinite; lower the learning rate or check the input"
        )
    if (run.folder / LOG).is_file():
        shutil.copyfile(run.folder / LOG, target / CURVE)
    entry = {
        "key": key,
        "config": part,
        "data": data,
        **commit(),
        "processor": computed_on(run.environment),
        "arithmetic": run.environment["arithmetic"],
        "seconds": round(seconds, 3),
        "notices": run.environment.get("notices", []),
        "finished": now(),
    }
    write_atomically(target / RECORD, json.dumps(entry, indent=2) + "\n")
    names = sorted(path.name for path in target.iterdir() if path.is_file())
    write_sums(target, {name: sha256_of(target / name) for name in names})


def _is_whole(folder: Path) -> bool:
    """Whether an entry is complete and unaltered; warns of a damaged one."""
    if not (folder / SUMS).is_file():
        return False
    try:
        check_sums(folder, "it is trained again")
        if wrong := _not_finite(folder):
            raise UserError(f"{folder}: {wrong} is NaN or infinite; it is trained again")
    except UserError as error:
        warnings.warn(str(error), stacklevel=2)
        return False
    return True


def _not_finite(folder: Path) -> str | None:
    """The first tensor of an entry's weights that is NaN or infinite."""
    from safetensors.torch import load_file  # needs torch, which plans do without

    from shared.experiment.states import not_finite

    files = sorted(folder.glob("*.safetensors"))
    return not_finite({file.name: load_file(file) for file in files})


def _digest(value: Mapping[str, Any]) -> str:
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()
