"""A run is a folder: configuration, environment, log, checkpoint and, written last, the result.

    config.json        canonical, written first; another configuration is refused
    environment.json   commit, command, versions, hardware, arithmetic, hashes of the data, further
                       facts, warnings of the training; no names of hosts, users and folders, see
                       :mod:`shared.experiment.environment`
    log.jsonl          one line for each logged step; tensorboard/ holds the same as event files
    checkpoint.pt      tracked objects, step, seconds and random states; a domain may delete it once
                       the run is done
    failure.json       why the last attempt failed; deleted at the end
    result.json        metrics, and the hash of the run; its existence means done

Every file is written atomically, see :mod:`shared.experiment.files`. Only the log is appended to;
lines past the checkpoint, and an incomplete last line, are cut when the run resumes.
"""

import contextlib
import json
import math
import os
import resource
import shutil
import signal
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import FrameType
from typing import Any, Protocol, Self

import torch
from torch import Tensor, nn

from shared.distributed import (
    all_gather_objects,
    any_rank,
    destroy,
    rank,
    single_process,
    world_size,
)
from shared.errors import UserError, naming
from shared.experiment.checkout import now
from shared.experiment.config import USER_TIER, Config, canonical, canonical_json
from shared.experiment.environment import current_environment
from shared.experiment.files import replacing, write_atomically
from shared.experiment.randomness import (
    preserve_state,
    random_state,
    restore_random_state,
    seed_everything,
)
from shared.experiment.records import HASH, content_hash, read_json
from shared.experiment.run_folders import (
    LOG,
    RUN_OUTPUTS,
    WATCHED,
    Conflict,
    Interrupted,
    WorkerDone,
    check_config,
    check_same_processes,
    locked,
    log_lines,
    stop_signals,
)
from shared.experiment.states import not_finite, read_state, write_state
from shared.experiment.tracking import VARIABLE, Logger, TensorBoard, WeightsAndBiases
from shared.late import Late
from shared.notices import Progress, listeners, notice
from shared.objective import SHARE_PREFIX
from shared.precision import without_tf32
from shared.ranges import require_ranges, require_words

# Steps after which the loss is checked, where no line of the log is due before; it is read a step
# later, when a GPU has other work.
CHECK_EVERY = 100
OWN_DATA = "own"  # in a record, names the hash of data that a training was given
# Signs of a training that has diverged and stayed finite: a loss that ends at this multiple of its
# start, and a weight of this size.
DIVERGED, LARGEST_WEIGHT = 2.0, 1e4


class Stateful(Protocol):
    """Anything with a state that torch can save: modules, optimisers, schedules, scalers."""

    def state_dict(self) -> dict[str, Any]:
        """The state."""

    def load_state_dict(self, state_dict: dict[str, Any], /) -> Any:
        """Restore the state."""


class Run:
    """One run in its folder; a context manager that holds the folder's lock.

    Entering seeds Python's, numpy's and torch's generators from the configuration, keeps GPUs from
    taking TF32 for float32 until the run is left, and makes SIGTERM, SIGINT and SIGHUP a request:
    the next :meth:`checkpoint` saves and raises :class:`Interrupted`.

    With several processes (torchrun's, see :mod:`shared.distributed`) each has a run of the same
    configuration. The first one holds the lock and writes, the others read its checkpoint; all do
    the same steps, save and stop together, and after :meth:`continue_on_rank_zero` only the first
    continues.

    Args:
        folder: the folder of the run.
        config: its configuration.
        tier: of the cell; free text for runs outside tables.
        workers: how many processes or threads the run may use.
        data_root: the folder of datasets.
        allow_missing: whether the run may omit files that are missing or unreadable; the
            environment records it.
        progress: called with (done, total, what) during the run.
        watch: after how many lines of the log :attr:`score` is called, by the first process; None:
            never. No other number of the run depends on it.
        show: called with each line of the log that has scores, as text.
        store: the folder of shared pretrained models, see :mod:`shared.experiment.store`; None for
            no sharing.

    Attributes:
        stopping: whether the run was asked to stop.
        keep_checkpoint: whether :meth:`finish` keeps the checkpoint.
        loggers: also receive each line of the log, see :mod:`shared.experiment.tracking`.
        score: called with the tracked objects by name, during the training; returns scores of the
            encoder so far, by name.
        means: running means of the loss; :meth:`steps` logs them, a checkpoint includes them.
        checks: by name, called by :meth:`finish` before the result is written; may raise.
        temporary: folders that :meth:`finish` deletes once the result is written.
        saved_step: the step of the checkpoint on disk; None without one.
        processes: the number of processes of the run.
        environment: of the run, as far as it is known; :meth:`record` adds to it.
        recorded: the data whose hashes were recorded since the run was entered.
        steps_taken: the number of training steps, those before a checkpoint included.

    Raises:
        Locked: another process uses the folder.
        Conflict: the folder was made with another configuration.
        Damaged: the folder holds a checkpoint or result, but not the file that says of what.
        ValueError: a word or number that a field of the configuration cannot be.
        UserError: with several processes, a batch that cannot be divided among them, a run that
            another number of them began, or processes whose code or configuration differs from the
            first one's.
    """

    def __init__(
        self,
        folder: Path,
        config: Config,
        *,
        tier: str = USER_TIER,
        workers: int = 1,
        data_root: Path = Path("data"),
        allow_missing: bool = False,
        progress: Progress | None = None,
        watch: int | None = None,
        show: Callable[[str], None] | None = None,
        store: Path | None = None,
    ) -> None:
        require_words(config)
        require_ranges(config)
        if lacking := [name for name in ("seed", "protocol") if not hasattr(config, name)]:
            raise ValueError(
                f"a configuration is a dataclass with a seed and the name of its protocol; "
                f"{type(config).__name__} has no {' and no '.join(lacking)}"
            )
        self.folder = folder
        self.store = store
        self.config = config
        self.tier = tier
        self.workers = workers
        self.data_root = data_root
        self.allow_missing = allow_missing
        self.watch = watch
        self.stopping = False
        self.keep_checkpoint = True
        self.loggers: list[Logger] = [TensorBoard(folder)]
        self.score: Callable[..., Mapping[str, Any]] | None = None
        self.means = Means()
        self.checks: dict[str, Callable[[], None]] = {}
        self.temporary: list[Path] = []
        self.saved_step: int | None = None
        self.processes = 1
        self.steps_taken = 0
        self._is_first = True
        self._random_states_of_others: list[dict[str, Any]] = []
        self.environment: dict[str, Any] = {}
        self.recorded: set[str] = set()
        self._data_before: Mapping[str, str] = {}  # hashes, of the checkpoint or result
        self._progress = progress
        self._show = show
        self._tracked: dict[str, Stateful] = {}
        self._restored_step = 0
        self._seconds_before = 0.0
        self._started = self._saved = time.monotonic()
        self._on_exit = contextlib.ExitStack()

    def __enter__(self) -> Self:
        if project := os.environ.get(VARIABLE):
            self.loggers.append(WeightsAndBiases(self.folder, self.config, project))
        self.processes, self._is_first = world_size(), rank() == 0
        check_processes(self.config, self.processes)
        with contextlib.ExitStack() as on_exit:
            if self._is_first:
                self.folder.mkdir(parents=True, exist_ok=True)
                on_exit.enter_context(locked(self.folder))
            on_exit.enter_context(without_tf32())
            self._begin_or_continue()
            for number, handler in self.stop_on_signals().items():
                on_exit.callback(signal.signal, number, handler)
            self._started = self._saved = time.monotonic()
            seed_everything(self.config.seed)
            listeners.append(self.keep_notice)
            on_exit.callback(listeners.remove, self.keep_notice)
            self._on_exit = on_exit.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        with self._on_exit:
            for logger in self.loggers:
                logger.close()

    def stop_on_signals(self) -> dict[signal.Signals, Any]:
        """Ask the run to stop on each signal that means it; returns the handlers until now."""

        def ask_to_stop(number: int, frame: FrameType | None) -> None:
            self.stopping = True

        before = {}
        for number in stop_signals():
            with contextlib.suppress(ValueError):  # not the main thread
                before[number] = signal.signal(number, ask_to_stop)
        return before

    def _begin_or_continue(self) -> None:
        """Compare the folder with this run, and write configuration and environment into it."""
        self.environment = current_environment(self.workers)
        if self.processes > 1:
            self.environment["processes"] = self.processes
            _check_alike(self.environment, self.config)
        if self.allow_missing:
            self.environment["allow_missing"] = True
        file = self.folder / "environment.json"
        if file.exists() and any((self.folder / name).exists() for name in RUN_OUTPUTS):
            before = read_json(file)
            self._data_before = before["data"]
            if (self.folder / "checkpoint.pt").exists():
                _carry_over_environment(before, self.environment)
        if self._is_first:
            for part in self.folder.glob(".*.part"):  # partial files of killed processes
                part.unlink(missing_ok=True)
            check_config(self.folder, self.config)
            check_same_processes(self.folder, self.processes)
            if not (self.folder / "config.json").exists():
                write_atomically(self.folder / "config.json", canonical_json(self.config))
            self._write_environment()

    @property
    def seconds(self) -> float:
        """Seconds spent on the run so far, those before the checkpoint it resumed from included."""
        return self._seconds_before + time.monotonic() - self._started

    def record_data(self, **fingerprints: str) -> None:
        """Note the hashes of the datasets used, by name.

        Raises:
            Conflict: the folder's checkpoint or result is of other files.
        """
        fields = ("dataset", "corpus", "task")
        trained_on = {OWN_DATA, *(getattr(self.config, field, None) for field in fields)}
        for name, digest in fingerprints.items():
            before = self._data_before.get(name, digest)
            if name in trained_on and digest != before:
                raise Conflict(
                    f"{self.folder} holds a run that was trained on other data ({name}: "
                    f"{before[:12]}, now {digest[:12]}); give the same, or rename the "
                    f"folder to start over; --again does so for a table's cells"
                )
        self.recorded |= fingerprints.keys()
        self.environment["data"] |= fingerprints
        self._write_environment()

    def record(self, **facts: str) -> None:
        """Note further facts about the environment of the run, by name."""
        self.environment.setdefault("facts", {}).update(facts)
        self._write_environment()

    def continue_on_rank_zero(self) -> None:
        """From here on only the first process works; the others end.

        Raises:
            WorkerDone: in all processes but the first.
        """
        if world_size() > 1:
            destroy()
            if not self._is_first:
                raise WorkerDone

    def track(self, **objects: Stateful) -> int:
        """Register the objects of a checkpoint, restore them from it, and return the step reached.

        Raises:
            UserError: a checkpoint that is damaged, or does not fit the objects.
        """
        self._tracked = objects
        file = self.folder / "checkpoint.pt"
        (saved, *_) = all_gather_objects(file.exists())
        self._restored_step = self._restore(file) if saved else 0
        if self._is_first:
            self._trim_log(self._restored_step)
        return self._restored_step

    def _restore(self, file: Path) -> int:
        """Restore the tracked objects and the random state; return the step of the checkpoint."""
        try:
            state = read_state(file)
            if (wrong := not_finite(state["objects"])) is not None:
                raise UserError(
                    f"{file}: {wrong} is NaN or infinite; start over with --again, and lower the "
                    f"learning rate"
                )
            for name, item in self._tracked.items():
                item.load_state_dict(state["objects"][name])
            # Checkpoints of older runs have no means.
            self.means.load_state_dict(state["objects"].get("means", Means().state_dict()))
            self._seconds_before = float(state["seconds"])
            self._random_states_of_others = state.get("random_of_others", [])
            restore_random_state([state["random"], *self._random_states_of_others][rank()])
            self.saved_step = int(state["step"])
            return self.saved_step
        except UserError:  # from an object with files of its own, which it names
            raise
        except FileNotFoundError:
            raise UserError(
                f"process {rank()} does not see {file}; all processes of a run need the same "
                f"runs/, on a file system that they share"
            ) from None
        except Exception as error:  # a state that does not fit can raise anything
            reason = f"{type(error).__name__}: {error}".splitlines()[0]
            raise UserError(
                f"{file} cannot be resumed ({reason}); delete the folder to start again"
            ) from error

    def steps(
        self,
        total: int,
        what: str,
        *,
        unit: int = 1,
        log_every: int = 1,
        save_every: float = 0.0,
        also: Callable[[int], Mapping[str, float]] | None = None,
    ) -> Iterator[int]:
        """The remaining steps of a loop, after those that :meth:`track` restored.

        After each step progress is reported, every ``log_every`` steps and after the last one the
        :attr:`means` are logged, with ``watch`` together with the :attr:`score`, and a checkpoint
        is saved when due::

            run.track(model=model, optimiser=optimiser)
            for step in run.steps(1000, "training", log_every=100, save_every=120.0):
                run.means.add(train_step(model, optimiser, step))

        Args:
            total: the number of steps, those done before included.
            what: what the loop does, for the progress.
            unit: the size of a step in log, checkpoint and progress.
            log_every: the number of steps over which a line of the log averages.
            save_every: seconds between two checkpoints, see :meth:`checkpoint`. One older than a
                tenth of that is renewed after the last step, since an evaluation can take long.
            also: returns further numbers for a line of the log, by name.

        Raises:
            Interrupted: after a step and its save, when the run was asked to stop.
            FloatingPointError: a mean or a tracked object is NaN or infinite, before anything of it
                is written; the means are checked every ``CHECK_EVERY`` steps at least.
            ValueError: a negative total.
        """
        if total < 0:
            raise ValueError(f"{what} takes {total} steps; give 0 epochs or steps, or more")
        first, to_check = self._restored_step // unit, None
        self.steps_taken = total * unit
        for step in range(first, total):
            yield step
            done = step + 1
            logged = done % log_every == 0 or done == total
            if to_check is not None:  # of the step before
                self._stop_if_not_finite(to_check(), step * unit)
            to_check = self.means.finiteness() if logged or done % CHECK_EVERY == 0 else None
            if logged:
                self._stop_if_not_finite(to_check() if to_check else None, done * unit)
                to_check = None
                first_means, *others = all_gather_objects(self.means.take())
                means = {
                    name: sum((each[name] for each in others), mean) / (1 + len(others))
                    for name, mean in first_means.items()
                }
                numbers = {**(also(step) if also else {}), **means}
                due = self.watch and (done == total or done // log_every % self.watch == 0)
                scores = self._scores() if due and self._is_first else {}
                if numbers or scores:
                    self.log(done * unit, **numbers, **scores)
                if scores:
                    self.show(done * unit, total * unit, what, **numbers, **scores)
            self.progress(done * unit, total * unit, what)
            self.checkpoint(done * unit, every=save_every)
        unsaved = first < total and self.saved_step != total * unit
        if unsaved:  # evaluated next, whether or not it is saved
            self._stop_if_not_finite(not_finite(self._states()), total * unit)
        if first < total and self._is_first:
            self._warn_if_diverged()
        (stopping,) = any_rank(self.stopping)
        if stopping or unsaved:
            self.checkpoint(total * unit, every=save_every / 10)

    def log(self, step: int, **numbers: float) -> None:
        """Append one line to the log, and pass it on to the loggers.

        Raises:
            FloatingPointError: a number that is NaN or infinite; nothing is written.
        """
        if not self._is_first:
            return
        for name, number in numbers.items():
            if not math.isfinite(number):
                raise FloatingPointError(_not_finite_text(name, step))
        line = {"step": step, "seconds": round(self.seconds, 3), **numbers}
        file = self.folder / LOG
        with naming("write", file), file.open("a") as stream:
            stream.write(json.dumps(line) + "\n")
        for logger in self.loggers:
            logger.log(step, numbers)

    def progress(self, done: int, total: int, what: str) -> None:
        """Report the progress of the run."""
        if self._progress is not None:
            self._progress(done, total, what)

    def show(self, done: int, total: int, what: str, **numbers: float) -> None:
        """Show numbers of the training so far as one line of text."""
        if self._show is not None:
            text = ", ".join(f"{name} {number:.4g}" for name, number in numbers.items())
            self._show(f"{what} {done} of {total}: {text}")

    def _scores(self) -> dict[str, float]:
        """The scores of the tracked objects, of which the run keeps no trace."""
        if self.score is None:
            return {}
        before, progress = self.seconds, self._progress
        modules = [item for item in self._tracked.values() if isinstance(item, nn.Module)]
        self._progress = None
        listeners.remove(self.keep_notice)
        try:
            with single_process(), preserve_state(*modules):
                scores = self.score(**self._tracked)
        finally:
            listeners.append(self.keep_notice)
            self._progress = progress
            self._started += self.seconds - before  # its seconds are not those of the run
        return {f"{WATCHED}{name}": number for name, number in scores.items()}

    def checkpoint(self, step: int, *, every: float = 0.0) -> None:
        """Save the tracked objects; then stop, if the run was asked to.

        ``every`` spaces out saves of large models with short epochs. A run that is killed then
        repeats up to that much work, with the same results; one that is interrupted still loses
        nothing. The last step is best saved without ``every``, so that the checkpoint has the
        evaluated state.

        Args:
            step: the step reached.
            every: seconds that must have passed since the last save, or since the start; 0 saves
                always.

        Raises:
            Interrupted: after the save, when the run was asked to stop.
            FloatingPointError: a tracked object is NaN or infinite; nothing is written.
        """
        due = self._is_first and time.monotonic() - self._saved >= every
        if not any(any_rank(self.stopping, due)):  # all processes, or none
            return
        self._save(step)
        self.saved_step, self._saved = step, time.monotonic()
        if any(any_rank(self.stopping)):
            if self._progress is None and self._is_first:  # a user's own script
                text = f"{self.folder}: interrupted, saved at step {step}; run it again to resume"
                print(text, file=sys.stderr)
            raise Interrupted

    def _states(self) -> dict[str, Any]:
        """The states of the tracked objects and the means, by name."""
        items = {**self._tracked, "means": self.means}.items()
        return {name: item.state_dict() for name, item in items}

    def _stop_if_not_finite(self, wrong: str | None, step: int) -> None:
        """Stop all processes if one of them names something that is NaN or infinite."""
        if any(any_rank(wrong is not None)):
            raise FloatingPointError(_not_finite_text(wrong or "another process's state", step))

    def _warn_if_diverged(self) -> None:
        """Warn once if the loss ends far above its start, or a weight is far too large.

        A loss of cosines is bounded, so that it hardly shows that the weights have exploded.
        """
        remedy = "the training has diverged; lower the learning rate"
        losses = [float(line["loss"]) for line in log_lines(self.folder) if "loss" in line]
        tenth = len(losses) // 10
        first, last = (max(losses[:tenth]), min(losses[-tenth:])) if tenth else (0.0, 0.0)
        modules = [item for item in self._tracked.values() if isinstance(item, nn.Module)]
        parameters = [p for module in modules for p in module.parameters() if p.numel()]
        weights = [float(parameter.detach().abs().max()) for parameter in parameters]
        if last - first > (DIVERGED - 1) * max(abs(first), 1):
            notice(f"the loss began at {first:.4g} and ends at {last:.4g}: {remedy}")
        elif (largest := max(weights, default=0.0)) > LARGEST_WEIGHT:
            notice(f"the largest weight at the end is {largest:.2g}: {remedy}")

    def _save(self, step: int) -> None:
        objects = self._states()
        self._stop_if_not_finite(not_finite(objects), step)
        if world_size() > 1:
            _, *self._random_states_of_others = all_gather_objects(random_state())
        if not self._is_first:
            return
        state = {
            "step": step,
            "seconds": self.seconds,
            "objects": objects,
            "random": random_state(),
            "random_of_others": self._random_states_of_others,
        }
        with replacing(self.folder / "checkpoint.pt") as part:
            write_state(part, state)

    def finish(self, metrics: Mapping[str, Any]) -> dict[str, Any]:
        """Write the result, which ends the run. Only the first of several processes gets here.

        Raises:
            ValueError: metrics that are not numbers, texts or lists of such by name.
        """
        self.continue_on_rank_zero()
        plain = _plain(metrics)
        for check in self.checks.values():
            check()
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        if torch.cuda.is_available():
            self.environment["peak_device_memory_bytes"] = torch.cuda.max_memory_allocated()
        (self.folder / "result.json").unlink(missing_ok=True)  # of an earlier finish of this run
        if shares := _median_shares(self.folder):
            self.record(**shares)
        self._write_environment()
        result = {
            "metrics": plain,
            "protocol": self.config.protocol,
            "tier": self.tier,
            "seconds": round(self.seconds, 3),
            "peak_memory_bytes": peak,
            "finished": now(),
        }
        config = read_json(self.folder / "config.json")
        result[HASH] = content_hash(config, self.environment, result)
        write_atomically(self.folder / "result.json", json.dumps(result, indent=2) + "\n")
        (self.folder / "failure.json").unlink(missing_ok=True)
        if not self.keep_checkpoint:
            (self.folder / "checkpoint.pt").unlink(missing_ok=True)
        for folder in self.temporary:
            shutil.rmtree(folder, ignore_errors=True)
        return result

    def keep_notice(self, text: str) -> None:
        """Add a warning of the training to the record."""
        notices = self.environment.setdefault("notices", [])
        if text not in notices:  # steps that are repeated give it again
            notices.append(text)
            self._write_environment()

    def _write_environment(self) -> None:
        if not self._is_first or (self.folder / "result.json").exists():
            return  # the hash of a result includes the existing file
        text = json.dumps(self.environment, indent=2) + "\n"
        write_atomically(self.folder / "environment.json", text)

    def _trim_log(self, step: int) -> None:
        """Cut the log after the checkpoint: those steps are repeated."""
        file = self.folder / LOG
        if not file.exists():
            return
        kept_lines = ""
        with contextlib.suppress(ValueError, KeyError):  # a line cut off by a kill
            for line in file.read_text(errors="replace").splitlines():
                if json.loads(line)["step"] > step:
                    break
                kept_lines += f"{line}\n"
        write_atomically(file, kept_lines)


class Means:
    """Running means of the parts of the loss; only :meth:`take` waits for the device.

    A part that some steps lack is averaged over the others. A checkpoint has them.
    """

    def __init__(self) -> None:
        self._sums: dict[str, Tensor] = {}
        self._counts: dict[str, int] = {}

    def add(self, parts: dict[str, Tensor]) -> None:
        """Add the scalars of one step."""
        for name, part in parts.items():
            value = part.double()
            if name in self._sums:
                value = self._sums[name].to(value.device) + value
            self._sums[name] = value
            self._counts[name] = self._counts.get(name, 0) + 1

    def finiteness(self) -> Callable[[], str | None] | None:
        """What finds later the first sum that is NaN or infinite now; None without any sum."""
        if not self._sums:
            return None
        names, late = tuple(self._sums), Late(*map(torch.isfinite, self._sums.values()))
        return lambda: next(
            (name for name, finite in zip(names, late.read(), strict=True) if not finite), None
        )

    def take(self) -> dict[str, float]:
        """The means since the last call."""
        means = {name: float(total) / self._counts[name] for name, total in self._sums.items()}
        self._sums, self._counts = {}, {}
        return means

    def state_dict(self) -> dict[str, Any]:
        """Sums and counts."""
        return {"sums": self._sums, "counts": self._counts}

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        """Restore sums and counts."""
        self._sums, self._counts = state["sums"], state["counts"]


def check_processes(config: Config, processes: int) -> None:
    """Refuse a number of processes that the batch cannot be divided among."""
    size = getattr(config, "batch_size", 1)
    if size % processes:
        raise UserError(
            f"batch_size {size} cannot be divided among {processes} processes; use a divisor of it"
        )


def _plain(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """The metrics as JSON has them."""
    if not isinstance(metrics, Mapping):
        raise ValueError(f"metrics are numbers by name; got {type(metrics).__name__}")
    plain = {}
    for name, value in metrics.items():
        try:
            plain[str(name)] = canonical(value)
        except TypeError as error:
            kind = type(value).__name__
            raise ValueError(f"metric {name!r} is a {kind}; give a number, float(...)") from error
    return plain


def _median_shares(folder: Path) -> dict[str, str]:
    """The median over the log of each term's share of the gradient, if it was measured."""
    shares: defaultdict[str, list[float]] = defaultdict(list)
    for line in log_lines(folder):
        for name, number in line.items():
            if name.startswith(SHARE_PREFIX):
                shares[name].append(number)
    return {name: f"{statistics.median(numbers):.4g}" for name, numbers in shares.items()}


def _not_finite_text(what: str, step: int) -> str:
    return f"{what} is NaN or infinite by step {step}; lower the learning rate or check the input"


def _carry_over_environment(before: Mapping[str, Any], environment: dict[str, Any]) -> None:
    """Add to an environment what holds of the steps before the checkpoint, made in another one.

    Their warnings, the hashes of their data, that the code had changes, and commit and torch where
    these were others.
    """
    notices = dict.fromkeys(before.get("notices", []))
    versions_before, versions = (
        f"commit {entry['commit']}, torch {entry['versions']['torch']}"
        for entry in (before, environment)
    )
    if versions_before != versions:
        notices[f"resumed from a checkpoint of {versions_before}"] = None
    if notices:
        environment["notices"] = list(notices)
    environment["data"] = dict(before["data"])
    environment["dirty"] = environment["dirty"] or before["dirty"]


def _check_alike(environment: Mapping[str, Any], config: Config) -> None:
    """Refuse a process whose code or configuration differs from the first one's."""
    facts = {
        "commit": environment["commit"],
        "changed files": environment["dirty"],
        "torch": environment["versions"]["torch"],
        "configuration": canonical_json(config),
    }
    first, *others = all_gather_objects(facts)
    for number, other in enumerate(others, 1):
        for name, value in first.items():
            if other[name] != value:
                shown = "" if name == "configuration" else f": {other[name]}, not {value}"
                raise UserError(
                    f"process {number} has another {name} than process 0{shown}; give all "
                    f"processes of a run the same checkout and arguments"
                )
