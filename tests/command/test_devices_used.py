"""A GPU that was asked for and is of no use is refused; what is recorded of one, and restored."""

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from shared.command import devices, pool
from shared.errors import UserError
from shared.experiment.environment import current_environment, driver
from shared.experiment.randomness import random_state, restore_random_state
from shared.switches import graphs_wanted
from tests.stages.errors import error_of
from tests.stages.gpu_summary import summary
from tests.stages.simulated_device import SimulatedDevice


@pytest.fixture
def idle(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A machine with a GPU that torch cannot use."""
    for name in ("SLURM_JOB_GPUS", "SLURM_GPUS_ON_NODE", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    monkeypatch.setattr(devices, "gpu_is_there", lambda: True)
    monkeypatch.setattr(devices, "may_have_gpu", lambda: True)
    return monkeypatch


def fails(reason: str) -> None:
    raise RuntimeError(reason)


def test_a_gpu_that_lies_idle_is_named_with_torchs_reason(idle: pytest.MonkeyPatch) -> None:
    idle.setattr(torch.cuda, "init", lambda: fails("Torch not compiled with CUDA enabled"))
    (line,) = devices.check()
    assert "Torch not compiled with CUDA enabled" in line
    for name in ("SLURM_JOB_GPUS", "SLURM_GPUS_ON_NODE"):  # asked for: refused
        idle.setenv(name, "1")
        assert line in error_of(devices.check)
        idle.delenv(name)
    idle.setenv("CUDA_VISIBLE_DEVICES", "")  # and not wanted: no word
    assert devices.check() == []
    idle.delenv("CUDA_VISIBLE_DEVICES")
    idle.setattr(devices, "gpu_is_there", lambda: False)
    assert devices.check() == []


def test_torch_is_asked_for_gpus_unless_linux_shows_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(devices, "NODES", ("no such*", "nul[l]"))
    assert devices.may_have_gpu()
    monkeypatch.setattr(devices, "NODES", ("no such*",))
    assert not devices.may_have_gpu()
    assert devices.check() == []
    assert pool.visible_devices() == ()
    monkeypatch.setattr(sys, "platform", "darwin")
    assert devices.may_have_gpu()


def test_the_summary_of_a_gpu_s_tests_has_its_steps_and_what_failed() -> None:
    step = {"step": "CURL", "milliseconds": 12.34, "host": 1.2, "waits": 0, "gigabytes": 3.21}
    passed = SimpleNamespace(duration=2.0, user_properties=[("step", step), ("other", 1)])
    failed = SimpleNamespace(nodeid="tests/test_it.py::test_it", longrepr="E  because\nlast line")
    lines = list(summary({"passed": [passed], "failed": [failed]}))
    assert "1 passed, 1 failed, 0 error, 0 skipped; 2 s" in lines
    assert "failed: tests/test_it.py::test_it last line" in lines
    assert "CURL: 12.3 (1.2, 0; 3.2)" in lines


@pytest.mark.parametrize(("value", "wanted"), [("1", True), ("0", False), ("", True)])
def test_graphs_are_switched_off(monkeypatch: pytest.MonkeyPatch, value: str, wanted: bool) -> None:
    monkeypatch.setenv("SUITE_GRAPHS", value)
    assert graphs_wanted() is wanted
    monkeypatch.setenv("SUITE_GRAPHS", "yes")
    with pytest.raises(UserError, match="SUITE_GRAPHS=yes"):
        graphs_wanted()


def test_the_environment_of_a_gpu_is_recorded(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    names = {"graphs", "cudnn_benchmark", "driver"}
    if not torch.cuda.is_available():  # records of CPUs keep their form
        assert not names & set(current_environment(1))
    monkeypatch.setenv("SUITE_GRAPHS", "1")
    with SimulatedDevice():
        found = current_environment(1)
    assert found["graphs"] is True
    assert found["cudnn_benchmark"] is torch.backends.cudnn.benchmark
    assert isinstance(found["driver"], str)
    file = tmp_path / "version"
    for text in ("NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat", "for x86_64  550.54.14  R"):
        driver.cache_clear()
        file.write_text(f"NVRM version: {text}")
        assert driver(file) == text.split("  ")[1]
    driver.cache_clear()
    monkeypatch.setenv("PATH", str(tmp_path))
    assert driver(tmp_path / "none") == "not read"
    driver.cache_clear()


@pytest.mark.parametrize("saved", [1, 2])
def test_a_run_goes_on_with_fewer_gpus_than_it_was_saved_with(
    saved: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its state has its own GPU's generator; those of older checkpoints have all."""
    given: list[torch.Tensor] = []
    with SimulatedDevice():
        monkeypatch.setattr(torch.cuda, "set_rng_state", lambda each, *_: given.append(each))
        state = random_state()
        (own,) = state["cuda"]
        state["cuda"] = [own, *[torch.zeros_like(own)] * (saved - 1)]
        restore_random_state(state)
    (restored,) = given
    assert torch.equal(restored, own)
