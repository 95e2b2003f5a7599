"""The environment of a run: commit, versions, hardware, and how sums are rounded.

Results are equal to the last bit on one kind of processor only. Beside versions and threads, the
last bits of a sum depend on the instructions that torch, its BLAS and numpy's BLAS choose for the
processor, and a long training carries them into the metric; so every run records them.
"""

import contextlib
import functools
import os
import platform
import re
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil
import torch
from threadpoolctl import threadpool_info

from shared.experiment.checkout import commit, now
from shared.precision import native_bfloat16, tf32_allowed
from shared.switches import graphs_wanted

PACKAGES = (
    "torch",
    "torchvision",
    "torch-geometric",
    "scikit-learn",
    "numpy",
    "scipy",
    "safetensors",
    "transformers",
    "tokenizers",
    "mujoco",
    "dm-control",
    "gymnasium",
)
NOT_READ = "not read"
# What is removed from a published command line: the folders of absolute paths, and secrets.
FOLDERS = re.compile(r"(?<![^\s='\":,])(?:~|(?:\.\./)*\.\.)?/(?:(?:\\.|[^\s/\\])+/)+")
SECRETS = re.compile(
    r"([\w-]*(?:token|secret|passw|credential|api[_-]?key)[\w-]*[= ])(?:\\.|[^\s\\])+",
    re.IGNORECASE,
)
USERS = re.compile(r"(?<=://)[^\s/@]+@")


def current_environment(workers: int) -> dict[str, Any]:
    """The environment of a run, which is published: it names no host, user or folder."""
    versions = {"python": platform.python_version()}
    for package in PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[package] = metadata.version(package)
    environment = {
        **commit(),
        "command": redacted(os.environ.get("SUITE_COMMAND") or " ".join(sys.argv)),
        "started": now(),
        "versions": versions,
        "hardware": {
            "system": "-".join(
                filter(None, (platform.system(), platform.machine(), *platform.libc_ver()))
            ),
            "processor": _processor(),
            "cores": os.cpu_count(),
            "memory_bytes": psutil.virtual_memory().total,
            "accelerators": [
                torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())
            ],
        },
        "arithmetic": arithmetic_used(),
        "tf32": tf32_allowed(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "threads": torch.get_num_threads(),
        "workers": workers,
        "data": {},
    }
    if torch.cuda.is_available():  # other records keep their form
        environment["graphs"] = graphs_wanted()
        environment["cudnn_benchmark"] = torch.backends.cudnn.benchmark
        environment["driver"] = driver()
    return environment


@functools.cache
def driver(file: Path = Path("/proc/driver/nvidia/version")) -> str:
    """The version of NVIDIA's driver."""
    with contextlib.suppress(OSError):  # containers may lack the file
        if match := re.search(r"\b\d{3,}\.\d+(\.\d+)?\b", file.read_text()):
            return match[0]
    return NOT_READ


def redacted(command: str) -> str:
    """A command line without the folders of absolute paths, secrets, and user names in URLs.

    >>> redacted("./reproduce.sh graph mmcl --data-root /home/ada/data")
    './reproduce.sh graph mmcl --data-root .../data'
    """
    text = command.encode("utf-8", "backslashreplace").decode()  # paths may not be UTF-8
    home = re.escape(os.path.expanduser("~"))
    text = re.sub(rf"(?<![^\s='\":,]){home}(?=[\s/]|$)", "~", text)
    return SECRETS.sub(r"\1...", USERS.sub("", FOLDERS.sub(".../", text)))


@functools.cache
def arithmetic_used() -> dict[str, Any]:
    """The CPU capability of torch, and the BLAS of numpy and scipy with its code path.

    torch's own BLAS follows its version and the processor. ``bfloat16`` is present where
    :mod:`shared.precision` emulates it.
    """
    import scipy.linalg  # noqa: F401  (so that its BLAS is always listed)

    libraries = [
        f"{pool['internal_api']} {pool['version']} {pool.get('architecture', NOT_READ)}"
        for pool in threadpool_info()
        if pool["user_api"] == "blas"
        and "opencv" not in pool["filepath"]  # loaded in some runs only
    ]
    # Only where it is emulated, so that other records keep their form.
    software = {} if native_bfloat16("cpu") else {"bfloat16": "rounded float32"}
    return {
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        **software,
        "numpy_and_scipy": sorted(set(libraries)),
    }


def _processor() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()
