"""The user's own data, given to a training: what a run records of them."""

import hashlib
from collections.abc import Container

import numpy as np
import torch
from torch import Tensor

from shared.errors import UserError
from shared.experiment.config import Config
from shared.experiment.run import Run

HASHED = 2**26  # bytes, up to which the content is hashed as well


def record_own(
    run: Run, config: Config, field: str, known: Container[str], *content: Tensor | np.ndarray
) -> None:
    """Record data that were given to a training, unless its data set was recorded already.

    The hash of the data is that of types and shapes, and of the content up to :data:`HASHED` bytes
    in all.

    Raises:
        UserError: ``field`` of the configuration names a data set of the domain, one of the
            ``known``, for which the data that were given would be taken.
    """
    name = getattr(config, field)
    if run.has_recorded(name):
        return
    if name in known:
        raise UserError(
            f"the configuration says {field}={name!r}, but the data were given; name them, as in "
            f"{field}='mine'"
        )
    whole = sum(item.nbytes for item in content) <= HASHED
    digest = hashlib.sha256()
    for item in content:
        digest.update(f"\0{item.dtype} {tuple(item.shape)}\0".encode())
        if whole and isinstance(item, Tensor):
            digest.update(item.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
        elif whole:
            digest.update(np.ascontiguousarray(item).tobytes())
    run.record_data(**{name: digest.hexdigest()})
