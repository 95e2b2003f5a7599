"""What a command trains on: said once, and refused where a GPU was asked for and cannot be used.

torch is imported where it is asked: commands that train nothing answer without it.
"""

import os
import sys
from pathlib import Path

from shared.errors import UserError
from shared.experiment.config import Config

# What Linux has in /dev for GPUs of NVIDIA, of its boards, of AMD, and in Windows' subsystem.
NODES = ("nvidia*", "nvhost*", "nvmap", "kfd", "dxg")
HIDDEN = ("", "-1", "NoDevFiles")  # CUDA_VISIBLE_DEVICES where no GPU is wanted


def check() -> list[str]:
    """Refuse a GPU of Slurm's that cannot be used; returns a line about one that stays idle."""
    assigned = any(os.environ.get(name) for name in ("SLURM_JOB_GPUS", "SLURM_GPUS_ON_NODE"))
    if os.environ.get("CUDA_VISIBLE_DEVICES") in HIDDEN or not (assigned or may_have_gpu()):
        return []
    import torch

    if torch.cuda.is_available() or not (assigned or gpu_is_there()):
        return []
    why = f"there is a GPU, but torch cannot use it ({why_none()})"
    if assigned:
        raise UserError(f"{why}; or train on the CPU with CUDA_VISIBLE_DEVICES= (empty)")
    return [why]


def used(threads: int, config: Config) -> list[str]:
    """What this process trains on, and a warning if it computes a precision slowly."""
    import torch

    if not torch.cuda.is_available():
        return [f"on cpu, {threads} thread{'s' * (threads > 1)}"]
    name, capability = torch.cuda.get_device_name(), torch.cuda.get_device_capability()
    lines = [f"on {name}"]
    if capability < (8, 0) and getattr(config, "precision", "") == "bfloat16":
        lines.append(
            f"{name} (compute capability {capability[0]}.{capability[1]}, below 8.0) only emulates "
            f"bfloat16, slowly; --set precision=float32 computes in single precision"
        )
    return lines


def gpu_is_there() -> bool:
    """Whether the system has an NVIDIA GPU, whatever torch says."""
    return any(Path("/dev").glob("nvidia[0-9]*"))


def may_have_gpu() -> bool:
    """Whether to ask torch for GPUs, whose import takes seconds; True unless there can be none."""
    return sys.platform != "linux" or any(any(Path("/dev").glob(name)) for name in NODES)


def why_none() -> str:
    """Why torch can use no GPU, in its own words, and what may help."""
    import torch

    reason = "it finds none"
    try:
        torch.cuda.init()
    except (AssertionError, RuntimeError) as error:
        reason = str(error).partition("\n")[0].partition(". Please")[0].rstrip(".")
    anew = "delete .venv and set it up where there is one, or by UV_TORCH_BACKEND=cu130"
    return f"{reason}; update the driver, or {anew} ./reproduce.sh version"
