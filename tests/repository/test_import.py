"""What is imported by whom: no GPU is asked for by the server of processes, no torch to plan."""

import subprocess
import sys
from itertools import chain
from pathlib import Path

import pytest

from shared.command.cells import DOMAINS
from shared.command.server import preloaded

PROGRAM = """
import importlib, sys
import torch

def asked(*_, **__):
    raise AssertionError("a GPU was asked for at import")

torch.cuda._lazy_init = asked
# The last describes torch's build with the version of CUDA's driver, which starts CUDA.
for name in ("_cuda_init", "_cuda_getDeviceCount", "_show_config"):
    if hasattr(torch._C, name):  # a CPU build lacks the first two, and torch tells it by them
        setattr(torch._C, name, asked)
for name in sys.argv[1:]:
    importlib.import_module(name)
    assert not torch.cuda.is_initialized(), name
"""


@pytest.mark.slow
def test_nothing_asks_for_a_gpu_at_import() -> None:
    """One process for all domains: each module's own lines run once, whoever imports it."""
    lists = [preloaded(domain) for domain in DOMAINS]
    modules = dict.fromkeys([*chain.from_iterable(names[:-1] for names in lists), lists[0][-1]])
    command = [sys.executable, "-c", PROGRAM, *modules]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr


# Each command here would wait for torch longer than it works, and for the others as long.
WITHOUT_TORCH = """
import sys
for name in ("torch", "pandas", "statsmodels", "scipy.stats"):
    sys.modules[name] = None  # importing it fails
from shared.command.reproduce import main
from shared.command.cells import DOMAINS, tables_of

folder = sys.argv[1]
for domain in DOMAINS:
    for paper in tables_of(domain):
        assert main(["plan", domain, paper, "--tier", "smoke", "--runs", folder]) == 0
assert main(["plan", "vision", "mmcl", "--runs", folder]) == 0
assert main(["verify", "rl", "--runs", folder]) == 0
assert main(["report", "--runs", folder, "--results", folder + "/results"]) == 0
"""


def test_planning_verifying_and_reporting_do_without_torch(tmp_path: Path) -> None:
    command = [sys.executable, "-c", WITHOUT_TORCH, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
