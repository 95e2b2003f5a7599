import dataclasses
import json
import multiprocessing
import os
import random
import shutil
import signal
import socket
import subprocess
import time
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import filelock
import numpy as np
import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from toy.train import Config, program
from toy.train import measure as train

from shared.errors import UserError
from shared.experiment import environment, files, randomness, run_folders
from shared.experiment import run as run_module
from shared.experiment.records import Damaged, read_failure, read_record
from shared.experiment.run import Means, Run
from shared.experiment.run_folders import (
    INTERRUPTED,
    Conflict,
    Interrupted,
    Locked,
    record_failure,
)
from shared.objective import SHARE_PREFIX

ROOT = Path(__file__).resolve().parents[2]


def start(folder: Path, steps: int, **options: Any) -> BaseProcess:
    """A process at work on a run, forked like those of cells from a server with all imported."""
    context = multiprocessing.get_context("forkserver")
    cells = ["shared.command.pool", "torch.utils.tensorboard", "scipy.linalg"]
    context.set_forkserver_preload(["toy.train", *cells, "shared.command.preloaded"])
    process = context.Process(target=program, args=(folder, steps), kwargs=options)
    process.start()
    return process


def result(folder: Path) -> dict[str, float]:
    return json.loads((folder / "result.json").read_text())["metrics"]


def losses(folder: Path) -> list[tuple[int, float]]:
    lines = map(json.loads, (folder / "log.jsonl").read_text().splitlines())
    return [(line["step"], line["loss"]) for line in lines]


def assert_whole(folder: Path) -> int:
    """Every file of the run can be read; returns the step of the checkpoint."""
    for name in ("config.json", "environment.json", "result.json"):
        if (folder / name).exists():
            json.loads((folder / name).read_text())
    if not (folder / "checkpoint.pt").exists():
        return 0
    return torch.load(folder / "checkpoint.pt", weights_only=True)["step"]


def saved_at(folder: Path) -> int:
    """When the last checkpoint was written, in nanoseconds."""
    file = folder / "checkpoint.pt"
    return file.stat().st_mtime_ns if file.exists() else 0


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole") / "run"
    program(folder, 40)
    return folder


@pytest.mark.slow
def test_killed_at_random_moments_it_gives_the_same_bits(
    tmp_path: Path, uninterrupted: Path
) -> None:
    folder, dice, reached, kills = tmp_path / "run", random.Random(0), 0, 0
    while True:
        before = saved_at(folder)
        process = start(folder, 40, megabytes=4, pause=0.03)
        # Let it resume and save, then kill it anywhere: at work, or in a save.
        while process.is_alive() and saved_at(folder) == before:
            time.sleep(0.01)
        time.sleep(dice.random() * 0.3)
        process.kill()
        process.join()
        if (folder / "result.json").exists():
            break
        kills += 1
        step = assert_whole(folder)
        assert step > reached, "no step is lost that a checkpoint held"
        reached = step
    assert kills >= 3
    assert result(folder) == result(uninterrupted)
    assert losses(folder) == losses(uninterrupted)
    assert not list(folder.glob(".*.part"))


def test_killed_while_a_file_is_written_the_old_one_stays(tmp_path: Path) -> None:
    file = tmp_path / "file.json"
    files.write_atomically(file, "old")
    child = os.fork()
    if child == 0:
        with files.replacing(file) as part:
            part.write_text("half of the new")
            os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    assert file.read_text() == "old"
    files.write_atomically(file, "new")
    assert file.read_text() == "new"


@pytest.mark.slow
def test_sigterm_saves_and_exits_75(tmp_path: Path, uninterrupted: Path) -> None:
    folder = tmp_path / "run"
    process = start(folder, 40, megabytes=4, pause=0.03)
    while not (folder / "checkpoint.pt").exists():
        time.sleep(0.01)
    process.terminate()
    process.join()
    assert process.exitcode == INTERRUPTED
    assert 0 < assert_whole(folder) < 40
    program(folder, 40, megabytes=4)
    assert result(folder) == result(uninterrupted)
    assert losses(folder) == losses(uninterrupted)


def test_saves_may_be_spaced_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, clock = tmp_path / "run", [100.0]
    monkeypatch.setattr(run_module.time, "monotonic", lambda: clock[0])
    with Run(folder, Config(5)) as run:
        saved = []
        for step, now in enumerate((105.0, 110.0, 115.0, 119.0, 120.0), start=1):
            clock[0] = now
            run.checkpoint(step, every=10.0)
            saved.append(assert_whole(folder))
        assert saved == [0, 2, 2, 2, 5]  # ten seconds after the start, ten after the last save
        assert run.saved_step == 5
        run.checkpoint(6)
        assert assert_whole(folder) == 6
        run.stopping = True
        with pytest.raises(Interrupted):
            run.checkpoint(7, every=10.0)
    assert assert_whole(folder) == 7


def test_steps_after_the_last_save_are_repeated_to_the_same_bits(
    tmp_path: Path, uninterrupted: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, config = tmp_path / "run", Config(40)
    checkpoint = Run.checkpoint

    def spaced(run: Run, step: int, *, every: float = 0.0) -> None:
        """Save step 10 alone; be gone at step 25, without a word."""
        checkpoint(run, step, every=0.0 if step == 10 else 3600.0)
        if step == 25:
            raise ConnectionError("power cut")

    monkeypatch.setattr(Run, "checkpoint", spaced)
    with pytest.raises(ConnectionError), Run(folder, config) as run:
        train(config, run)
    assert assert_whole(folder) == run.saved_step == 10
    monkeypatch.setattr(Run, "checkpoint", checkpoint)
    with Run(folder, config) as run:
        run.finish(train(config, run))
    assert result(folder) == result(uninterrupted)
    assert losses(folder) == losses(uninterrupted)


def test_a_resumed_loop_goes_on_in_its_units_and_seconds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, done = [100.0], []
    monkeypatch.setattr(run_module.time, "monotonic", lambda: clock[0])

    def go_on() -> Run:
        clock[0] += 50.0  # between two commands
        with Run(tmp_path, Config()) as run:
            assert run.track() == 4 * len(done)
            for step in run.steps(3, "training", unit=4, save_every=5.0):
                clock[0] += 1.0
                done.append(step)
                run.stopping = len(done) == 2
        return run

    with pytest.raises(Interrupted):
        go_on()
    for _ in range(2):
        run = go_on()
        # The last step is saved, a tenth of the time after the last save.
        assert (run.seconds, run.steps_taken, run.saved_step) == (3.0, 12, 12)
    assert done == [0, 1, 2]


def test_a_run_that_is_finished_again_has_one_whole_record(tmp_path: Path) -> None:
    for value in ("1", "2"):
        with Run(tmp_path, Config()) as run:
            run.record(value=value)
            run.finish({"accuracy": float(value)})
    record = read_record(tmp_path, "")
    assert record is not None
    assert record.result["metrics"] == {"accuracy": 2.0}
    assert record.environment["facts"] == {"value": "2"}


@pytest.mark.parametrize("keep", [True, False])
def test_the_checkpoint_of_a_finished_run_is_kept_or_not(tmp_path: Path, keep: bool) -> None:
    with Run(tmp_path / "run", Config(2)) as run:
        run.keep_checkpoint = keep
        metrics = train(run.config, run)
        assert assert_whole(run.folder) == 2
        run.finish(metrics)
    assert result(run.folder) == metrics
    assert (run.folder / "checkpoint.pt").exists() is keep


def test_a_checkpoint_of_another_device_resumes(
    tmp_path: Path, uninterrupted: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, config = tmp_path / "run", Config(40)
    with monkeypatch.context() as patch, Run(folder, config) as run:
        patch.setattr(torch.serialization, "location_tag", lambda storage: "cuda:0")
        run.stopping = True
        with pytest.raises(Interrupted):
            train(config, run)
    if not torch.cuda.is_available():
        with pytest.raises(RuntimeError, match="CUDA"):
            torch.load(folder / "checkpoint.pt", weights_only=True)
    with Run(folder, config) as run:
        run.finish(train(config, run))
    assert result(folder) == result(uninterrupted)


def test_another_configuration_is_refused_and_named(tmp_path: Path, uninterrupted: Path) -> None:
    before = {file.name: file.read_bytes() for file in uninterrupted.iterdir() if file.is_file()}
    for other, word in ((Config(41), "steps: 40 there, 41 here"), (Config(40, seed=8), "seed: 7")):
        with pytest.raises(Conflict, match=word):
            Run(uninterrupted, other).__enter__()
    after = {file.name: file.read_bytes() for file in uninterrupted.iterdir() if file.is_file()}
    assert after == before


@pytest.mark.parametrize("name", ["checkpoint.pt", "result.json"])
def test_a_folder_that_does_not_say_its_configuration_is_refused(
    name: str, tmp_path: Path, uninterrupted: Path
) -> None:
    """Its checkpoint may be of another one."""
    folder = tmp_path / "run"
    folder.mkdir()
    for kept in (name, "environment.json"):
        shutil.copy(uninterrupted / kept, folder)
    with pytest.raises(Damaged, match="config"):
        Run(folder, Config(41)).__enter__()
    assert not (folder / "config.json").exists()


def test_two_processes_cannot_share_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_folders, "LOCK_WAIT", 0.1)
    with Run(tmp_path / "run", Config(5)), pytest.raises(Locked, match="another process"):
        Run(tmp_path / "run", Config(5)).__enter__()
    with Run(tmp_path / "run", Config(5)):  # the lock is free again
        assert filelock.FileLock(tmp_path / "run" / ".lock").is_locked is False


def saved(folder: Path) -> Path:
    """The checkpoint of a run of three steps."""
    with Run(folder, Config(3)) as run:
        train(run.config, run)
    return folder / "checkpoint.pt"


def damages(content: bytes) -> dict[str, bytes]:
    flipped = bytearray(content)
    flipped[len(content) // 2] ^= 1
    return {"empty": b"", "other": b"text", "cut": content[:-500], "flipped": bytes(flipped)}


@pytest.mark.parametrize("kind", damages(b" "))
def test_damaged_checkpoint_is_named(tmp_path: Path, kind: str) -> None:
    file = saved(tmp_path / "run")
    damaged = damages(file.read_bytes())[kind]
    file.write_bytes(damaged)
    with pytest.raises(UserError, match="checkpoint"):
        saved(tmp_path / "run")
    assert file.read_bytes() == damaged


@pytest.mark.slow
def test_full_disk_leaves_earlier_files_intact(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    before = saved(folder).read_bytes()
    (folder / "config.json").unlink()
    process = start(folder, 5, room=4096)
    process.join()
    assert process.exitcode == 1
    assert (folder / "checkpoint.pt").read_bytes() == before
    assert not (folder / "result.json").exists()
    assert not list(folder.glob(".checkpoint*.part"))


def test_log_lines_past_the_checkpoint_are_cut(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    saved(folder)
    with (folder / "log.jsonl").open("a") as stream:
        stream.write('{"step": 4, "loss": 1.0}\n{"step": 5, "lo')
    saved(folder)
    assert [step for step, _ in losses(folder)] == [1, 2, 3]


def test_log_and_tensorboard_hold_the_same(uninterrupted: Path) -> None:
    (file,) = (uninterrupted / "tensorboard").iterdir()
    assert socket.gethostname() not in file.name
    events = EventAccumulator(str(uninterrupted / "tensorboard")).Reload().Scalars("loss")
    assert [event.step for event in events] == list(range(1, 41))
    assert [event.value for event in events] == pytest.approx([x for _, x in losses(uninterrupted)])


def test_record_holds_what_a_reader_needs(uninterrupted: Path) -> None:
    record = read_record(uninterrupted, "toy")
    assert record is not None
    assert record.config["steps"] == 40
    assert record.config["seed"] == 7
    assert record.result["protocol"] == "toy-v1"
    assert record.result["seconds"] > 0
    assert record.result["peak_memory_bytes"] > 2**20
    assert record.environment["versions"]["torch"].startswith(torch.__version__.split("+")[0])
    head = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert record.environment["commit"] == (head.stdout.strip() or "unknown")
    assert read_record(uninterrupted.parent / "none", "toy") is None


@pytest.mark.parametrize(
    ("metrics", "word"),
    [
        ({"loss": torch.tensor(0.5)}, "'loss'"),
        ({"right": np.int64(3)}, "'right'"),
        (None, "NoneType"),
        (0.5, "float"),
    ],
)
def test_metrics_that_are_no_numbers_by_name_are_refused_and_nothing_is_written(
    metrics: Any, word: str, tmp_path: Path
) -> None:
    with Run(tmp_path / "run", Config()) as run:
        with pytest.raises(ValueError, match=word):
            run.finish(metrics)
        assert not (tmp_path / "run/result.json").exists()
        run.finish({"accuracy": np.float64(0.5)})
    assert result(tmp_path / "run") == {"accuracy": 0.5}


def test_a_negative_number_of_steps_and_a_configuration_without_a_seed_are_refused(
    tmp_path: Path,
) -> None:
    with Run(tmp_path / "run", Config()) as run:
        assert list(run.steps(0, "training")) == []
        with pytest.raises(ValueError, match="-2"):
            next(run.steps(-2, "training"))
    with pytest.raises(ValueError, match="protocol"):
        Run(tmp_path, {"seed": 0})  # type: ignore[arg-type]


@pytest.mark.parametrize("allowed", [True, False])
def test_facts_data_and_that_they_may_be_missing_are_recorded(
    tmp_path: Path, allowed: bool
) -> None:
    with Run(tmp_path / "run", Config(1), allow_missing=allowed) as run:
        run.record(renderer="egl: a", first="1")
        run.record(renderer="egl: b")
        run.record_data(toys="ab")
        run.finish({})
    record = read_record(tmp_path / "run", "")
    assert record is not None
    assert record.environment["facts"] == {"renderer": "egl: b", "first": "1"}
    assert record.environment["data"] == {"toys": "ab"}
    assert record.environment.get("allow_missing") is (True if allowed else None)


def test_a_run_resumed_at_another_commit_says_where_its_checkpoint_was_made(
    tmp_path: Path,
) -> None:
    saved(tmp_path / "run")
    file = tmp_path / "run" / "environment.json"
    before = json.loads(file.read_text())
    file.write_text(json.dumps(before | {"commit": "a" * 40, "dirty": True}))
    for _ in range(2):  # the second one is resumed at the same commit
        with Run(tmp_path / "run", Config(3)) as run:
            (text,) = run.environment["notices"]
            assert "a" * 40 in text
            assert run.environment["commit"] == before["commit"]
            assert run.environment["dirty"]


def test_a_checkpoint_of_other_data_is_refused(tmp_path: Path) -> None:
    @dataclasses.dataclass(frozen=True)
    class OnToys(Config):
        dataset: str = "toys"

    def record(run: Run, digest: str) -> None:
        run.record_data(toys=digest, labels="of no training")

    folder = tmp_path / "run"
    with Run(folder, OnToys()) as run:
        record(run, 64 * "a")
        record(run, 64 * "b")  # nothing was trained on the first
        run.track()
        run.checkpoint(1)
    with Run(folder, OnToys()) as run:  # stopped before its data were read
        assert run.environment["data"]["toys"] == 64 * "b"
    with Run(folder, OnToys()) as run:
        text = "toys: b{12}, now c{12}"
        with pytest.raises(Conflict, match=text):
            record(run, 64 * "c")
        record(run, 64 * "b")
        run.record_data(labels="others")
        assert run.environment["data"]["toys"] == 64 * "b"
        run.keep_checkpoint = False
        run.finish({})
    with Run(folder, OnToys()) as run, pytest.raises(Conflict, match=text):
        record(run, 64 * "c")


def test_random_state_survives_the_round_trip(tmp_path: Path) -> None:
    randomness.seed_everything(3)
    torch.save(randomness.random_state(), tmp_path / "state.pt")
    drawn = (random.random(), np.random.rand(), torch.rand(3))
    randomness.restore_random_state(torch.load(tmp_path / "state.pt", weights_only=True))
    again = (random.random(), np.random.rand(), torch.rand(3))
    assert drawn[:2] == again[:2]
    assert torch.equal(drawn[2], again[2])


def test_failure_is_noted_and_gone_when_done(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    record_failure(folder, "the loss is not finite at step 3", "Traceback ...")
    assert read_failure(folder) == "the loss is not finite at step 3"
    with Run(folder, Config(1)) as run:
        run.finish(train(run.config, run))
    assert read_failure(folder) is None


def test_a_part_is_averaged_over_the_steps_that_have_it() -> None:
    means, resumed = Means(), Means()
    means.add({"loss": torch.tensor(1.0), "entropy": torch.tensor(10.0)})
    means.add({"loss": torch.tensor(2.0)})
    resumed.load_state_dict(means.state_dict())
    resumed.add({"loss": torch.tensor(6.0), "entropy": torch.tensor(30.0)})
    resumed.add({"loss": torch.tensor(3.0), "late": torch.tensor(5.0)})
    assert resumed.take() == {"loss": 3.0, "entropy": 20.0, "late": 5.0}
    resumed.add({"loss": torch.tensor(7.0)})
    assert resumed.take() == {"loss": 7.0}


def test_a_closed_terminal_asks_to_stop_as_a_scheduler_does(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGHUP)
    with Run(tmp_path / "run", Config()) as run:
        run.track()
        os.kill(os.getpid(), signal.SIGHUP)
        with pytest.raises(Interrupted):
            run.checkpoint(1)
        assert run.saved_step == 1
    assert signal.getsignal(signal.SIGHUP) == before


@pytest.mark.parametrize(
    ("command", "shown"),
    [
        ("./reproduce.sh graph mmcl --row MMCL/INV", "./reproduce.sh graph mmcl --row MMCL/INV"),
        ("/home/ada/suite/__main__.py graph", ".../__main__.py graph"),
        (
            "run --data-root=/mnt/a/data --runs /x/Jane\\ Doe/r",
            "run --data-root=.../data --runs .../r",
        ),
        ("run --to ../../ada/out --data-root HOME", "run --to .../out --data-root ~"),
        ("run HF_TOKEN=abc --api-key xyz", "run HF_TOKEN=... --api-key ..."),
        ("run https://ada:pass@host/x", "run https://host/x"),
    ],
)
def test_a_record_discloses_no_folder_user_or_secret(command: str, shown: str) -> None:
    assert environment.redacted(command.replace("HOME", os.path.expanduser("~"))) == shown


def test_a_run_keeps_gpus_from_tf32_and_says_so(tmp_path: Path) -> None:
    cudnn, config = torch.backends.cudnn, Config(1)
    outside = cudnn.allow_tf32, torch.get_float32_matmul_precision()
    assert environment.current_environment(1)["tf32"] is True  # torch's default
    with Run(tmp_path / "run", config) as run:
        assert (cudnn.allow_tf32, torch.get_float32_matmul_precision()) == (False, "highest")
        assert run.environment["tf32"] is False
    assert (cudnn.allow_tf32, torch.get_float32_matmul_precision()) == outside
    with pytest.raises(Conflict), Run(tmp_path / "run", Config(2)):
        pass
    assert cudnn.allow_tf32 is outside[0]


def test_an_environment_names_neither_host_nor_user_nor_variables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SUITE_COMMAND", f"./reproduce.sh --runs {tmp_path}/deep/runs")
    monkeypatch.setenv("WANDB_API_KEY", "a-secret-of-mine")
    found = environment.current_environment(1)
    names = "commit dirty command started versions hardware arithmetic tf32 deterministic threads"
    assert set(found) == {*names.split(), "workers", "data"}
    hardware = {"system", "processor", "cores", "memory_bytes", "accelerators"}
    assert set(found["hardware"]) == hardware
    text = json.dumps(found)
    for secret in (socket.gethostname(), str(tmp_path), "a-secret-of-mine", os.uname().release):
        assert secret not in text


def test_the_record_has_the_median_share_of_each_term_of_the_gradient(tmp_path: Path) -> None:
    with Run(tmp_path / "run", Config(6)) as run:
        run.track()
        for step in run.steps(6, "training", log_every=2):
            run.means.add({"loss": torch.tensor(1.0)})
            if step % 2 == 0:
                run.means.add(
                    {f"{SHARE_PREFIX}penalty": torch.tensor([0.1, 0.0, 0.5, 0.0, 0.2][step])}
                )
        run.finish({})
    facts = json.loads((tmp_path / "run" / "environment.json").read_text())["facts"]
    assert facts == {f"{SHARE_PREFIX}penalty": "0.2"}
