"""What the server of processes imports asks nothing of a GPU: what it forks could not use one."""

import subprocess
import sys
from itertools import chain

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
