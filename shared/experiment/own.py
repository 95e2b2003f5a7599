"""The user's own data, given to a training: what a run records of them."""

import hashlib
from collections.abc import Container

import numpy as np
import torch
from torch import Tensor

from shared.experiment.config import Config
from shared.experiment.run import OWN_DATA, Run
from shared.notices import remark

HASHED = 2**26  # bytes, up to which the content is hashed as well


def record_own(
    run: Run, config: Config, field: str, known: Container[str], *content: Tensor | np.ndarray
) -> None:
    """Record data that were given to a training, unless its data set was recorded already.

    Their hash is that of types and shapes, and of the content up to :data:`HASHED` bytes in all.
    Where ``field`` of the configuration names one of the ``known`` data sets, a notice says that it
    was not read.
    """
    name = getattr(config, field)
    if name in run.recorded:
        return
    whole = sum(item.nbytes for item in content) <= HASHED
    digest = hashlib.sha256()
    for item in content:
        digest.update(f"\0{item.dtype} {tuple(item.shape)}\0".encode())
        if whole and isinstance(item, Tensor):
            digest.update(item.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
        elif whole:
            digest.update(np.ascontiguousarray(item).tobytes())
    if name in known:
        remark(
            f"{field}={name!r} was not read: the data were given, of which the record has the "
            f"hash alone; set a name of your own"
        )
    run.record_data(**{OWN_DATA: digest.hexdigest()})
