"""Sentence encoders of any make on the tasks of mteb (Muennighoff et al. 2023)."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch
from mteb.models import ModelMeta
from torch import Tensor
from torch.nn.functional import normalize

from text.encoder import Encode, HasEncode, vectors_of


class MtebEncoder:
    """What ``mteb.evaluate`` takes for a model: vectors as they are, compared by their cosine.

    Args:
        encode: n sentences -> their vectors (n, d), or anything with such a method ``encode``.
        name: ``"organisation/model"``. mteb keeps scores under the name and does not compute them
            again, so that another encoder needs another one.
        revision: of the model, kept beside its name.

    Raises:
        ValueError: a name without its slash.
    """

    def __init__(self, encode: Encode | HasEncode, name: str, revision: str = "1") -> None:
        if name.count("/") != 1:
            raise ValueError(f"name is 'organisation/model'; got {name!r}")
        self.mteb_model_meta = ModelMeta.create_empty(
            {"name": name, "revision": revision, "similarity_fn_name": "cosine"}
        )
        self._encode = encode

    def encode(self, inputs: Iterable[Mapping[str, list[str]]], **others: Any) -> np.ndarray:
        """The vectors (n, d) float32 of the texts of all batches.

        Args:
            inputs: batches, each with its texts under ``"text"``.
            others: the task and the split that they come from, and options; none changes a vector.
        """
        return vectors_of(self._encode, [text for batch in inputs for text in batch["text"]])

    def similarity(self, first: Any, second: Any) -> Tensor:
        """Cosines (n, m) of n vectors with m others; arrays or tensors."""
        return _directions(first) @ _directions(second).T

    def similarity_pairwise(self, first: Any, second: Any) -> Tensor:
        """Cosines (n,) of n vectors, each with its own other one; arrays or tensors."""
        return (_directions(first) * _directions(second)).sum(1)


def _directions(vectors: Any) -> Tensor:
    return normalize(torch.as_tensor(vectors), dim=1)
