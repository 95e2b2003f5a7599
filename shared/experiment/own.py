"""Data of one's own that are given to a training: what a run records of them."""

import hashlib
from collections.abc import Container

import torch
from torch import Tensor

from shared.experiment.run import OWN_DATA, Run
from shared.notices import remark

HASHED = 2**26  # bytes, up to which the content is hashed as well


def record_own(run: Run, dataset: str, known: Container[str], *tensors: Tensor) -> None:
    """Record data that were given to a training, unless its data set was recorded already.

    Where the configuration names a data set of the domain, the written one says "own" instead.

    Their hash is that of types and shapes, and of the content up to :data:`HASHED` bytes in all.

    Args:
        run: of the training.
        dataset: of the configuration.
        known: the data sets of the domain.
        tensors: the data.
    """
    if dataset in run.environment["data"]:
        return
    whole = sum(each.numel() * each.element_size() for each in tensors) <= HASHED
    digest = hashlib.sha256()
    for each in tensors:
        digest.update(f"\0{each.dtype} {tuple(each.shape)}\0".encode())
        if whole:
            digest.update(each.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    run.record_own_data(digest.hexdigest(), rename=dataset in known)
    if dataset in known:
        remark(
            f"the configuration says dataset={dataset!r}, the data were given: the run is recorded "
            f"with dataset={OWN_DATA!r}; set a name of yours instead"
        )
