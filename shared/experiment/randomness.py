"""The states of Python's, numpy's and torch's global generators."""

import contextlib
import random
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn


def seed_everything(seed: int) -> None:
    """Seed Python's, numpy's and torch's global generators."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def random_state() -> dict[str, Any]:
    """The states of all global generators, as data that ``torch.load(weights_only=True)`` takes."""
    version, integers, gauss = random.getstate()
    name, keys, *rest = np.random.get_state(legacy=True)
    return {
        "python": (version, torch.tensor(integers), gauss),
        "numpy": (name, torch.from_numpy(np.asarray(keys, dtype=np.int64)), *rest),
        "torch": torch.get_rng_state(),
        "cuda": [torch.cuda.get_rng_state()] if torch.cuda.is_available() else [],
    }


def restore_random_state(state: Mapping[str, Any]) -> None:
    """Set all global generators to a state from :func:`random_state`."""
    version, integers, gauss = state["python"]
    if isinstance(integers, Tensor):  # older checkpoints have a tuple
        integers = integers.tolist()
    random.setstate((version, tuple(integers), gauss))
    name, tensor, *rest = state["numpy"]
    np.random.set_state((name, tensor.numpy().astype(np.uint32), *rest))
    torch.set_rng_state(state["torch"])
    if state["cuda"] and torch.cuda.is_available():
        # Older checkpoints have the states of all GPUs that were visible then.
        device = torch.cuda.current_device() if len(state["cuda"]) > 1 else 0
        torch.cuda.set_rng_state(state["cuda"][min(device, len(state["cuda"]) - 1)])


@contextlib.contextmanager
def preserve_state(*modules: nn.Module) -> Iterator[None]:
    """Restore modes and buffers of modules, and all global generators, at the end of the block."""
    parts = [(part, part.training) for module in modules for part in module.modules()]
    buffers = [(value, value.clone()) for module in modules for value in module.buffers()]
    random_before = random_state()
    try:
        yield
    finally:
        restore_random_state(random_before)
        for part, training in parts:
            part.training = training
        with torch.no_grad():
            for buffer, before in buffers:
                buffer.copy_(before)
