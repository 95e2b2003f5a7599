"""What computes: bits hold on one kind of processor only, so every run says what it was made with.

Beside versions and threads, the last bits of a sum depend on the instructions that torch, its BLAS
and numpy's BLAS choose for the processor, and a long training carries them into the metric.
"""

import functools
import json
import os
import re
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from threadpoolctl import threadpool_info

from shared.precision import native_bfloat16

# What a user can steer that choice with.
VARIABLES = (
    "ATEN_CPU_CAPABILITY",
    "CUBLAS_WORKSPACE_CONFIG",
    "MKL_CBWR",
    "MKL_DEBUG_CPU_TYPE",
    "MKL_ENABLE_INSTRUCTIONS",
    "MKL_NUM_THREADS",
    "NPY_DISABLE_CPU_FEATURES",
    "OMP_NUM_THREADS",
    "ONEDNN_MAX_CPU_ISA",
    "OPENBLAS_CORETYPE",
    "OPENBLAS_NUM_THREADS",
)
NOT_READ = "not read"
# Other code paths of one processor, by name: cells are repeated under them to see how far the same
# seed moves. Where a processor lacks a path, its libraries take another, and the record says which.
OTHER_PATHS: Mapping[str, Mapping[str, str]] = {
    "avx2": {"ATEN_CPU_CAPABILITY": "avx2", "MKL_CBWR": "AVX2", "OPENBLAS_CORETYPE": "Haswell"},
    "compatible": {"MKL_CBWR": "COMPATIBLE"},
    "without-vectors": {"ATEN_CPU_CAPABILITY": "default"},
}
REPEATS = "arithmetic"  # the folder below that of runs in which such repeats lie, one for each path


def arithmetic_used() -> dict[str, Any]:
    """Instructions of torch, the BLAS it uses and that BLAS's path, those of numpy and scipy.

    ``bfloat16`` is there where :mod:`shared.precision` computes it without instructions for it.
    ``variables`` holds those of ``VARIABLES`` that are set. What a library does not tell is "not
    read".
    """
    used = {name: os.environ[name] for name in VARIABLES if name in os.environ}
    return {**_libraries(), "variables": used}


@functools.cache
def _libraries() -> dict[str, Any]:
    """What was found when they were loaded; to ask takes seconds."""
    import scipy.linalg  # noqa: F401  (so that its BLAS is listed whoever asks)

    others = [
        f"{each['internal_api']} {each['version']} {each.get('architecture', NOT_READ)}"
        for each in threadpool_info()
        if each["user_api"] == "blas"
        and "opencv" not in each["filepath"]  # loaded in some runs only
    ]
    # Only where it is so: what other records computed with is called what it always was.
    software = {} if native_bfloat16("cpu") else {"bfloat16": "rounded float32"}
    return {
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        **software,
        "blas": _mkl() if torch.backends.mkl.is_available() else _built_with(),
        "numpy_and_scipy": sorted(set(others)),
    }


def path_of(environment: Mapping[str, Any]) -> str | None:
    """What a run computed with, as one line of text that can be compared; None if not on record.

    Variables are no part of it: they are how a path was asked for, not which one was taken.
    """
    if "arithmetic" not in environment:
        return None
    used = {name: value for name, value in environment["arithmetic"].items() if name != "variables"}
    return json.dumps(used, sort_keys=True)


def read_mkl(text: str) -> dict[str, str]:
    """MKL's own words, as ``MKL_VERBOSE`` prints them: its version, its path, and MKL_CBWR's."""
    about = re.search(r"MKL_VERBOSE (\S*MKL .*?) for (.*?), \w+ [\d.]+GHz", text)
    library, path = about.groups() if about else ("MKL", NOT_READ)
    branch = re.search(r"\bCNR:(\S+)", text)
    return {"library": library, "path": path, "cbwr": branch[1] if branch else NOT_READ}


def _mkl() -> dict[str, str]:
    """What MKL says when it multiplies; it has no other public way to ask for the path it takes."""
    name = "MKL_VERBOSE_OUTPUT_FILE"
    if {"MKL_VERBOSE", name} & set(os.environ):  # someone else listens
        return read_mkl("")
    with tempfile.TemporaryDirectory() as folder:
        file = os.environ[name] = str(Path(folder, "verbose"))
        try:
            with torch.backends.mkl.verbose(torch.backends.mkl.VERBOSE_ON):
                _ = torch.ones(2, 2) @ torch.ones(2, 2)
            return read_mkl(Path(file).read_text())
        except (OSError, RuntimeError):  # another MKL may not know the file, or be silent
            return read_mkl("")
        finally:
            del os.environ[name]


def _built_with() -> dict[str, str]:
    """The BLAS that torch was built with, where it is not MKL; its path is among numpy's or none's.

    A BLAS that threadpoolctl knows (OpenBLAS, BLIS) is listed beside numpy's.
    """
    found = re.search(r"BLAS_INFO=(\w+)", torch.__config__.show())
    return {"library": found[1] if found else NOT_READ, "path": NOT_READ, "cbwr": NOT_READ}
