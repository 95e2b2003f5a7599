"""Any sentence encoder on the tasks of mteb (Muennighoff et al. 2023)."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch
from mteb.models import ModelMeta
from torch import Tensor
from torch.nn.functional import normalize

from text.encoder import Encode, HasEncode, vectors_of


class MtebEncoder:
    """A model for ``mteb.evaluate``: unchanged vectors, compared by cosine similarity.

    Args:
        encode: n sentences -> their vectors (n, d), or an object with such a method ``encode``.
        name: ``"organisation/model"``. mteb caches scores by name, so another encoder needs another
            name.
        revision: of the model, cached with its name.
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
            others: the task, the split and options; none of them changes a vector.
        """
        return vectors_of(self._encode, [text for batch in inputs for text in batch["text"]])

    def similarity(self, first: Any, second: Any) -> Tensor:
        """Cosine similarities (n, m) of n vectors with m others; arrays or tensors."""
        return _directions(first) @ _directions(second).T

    def similarity_pairwise(self, first: Any, second: Any) -> Tensor:
        """Cosine similarities (n,) of n pairs of vectors; arrays or tensors."""
        return (_directions(first) * _directions(second)).sum(1)


def _directions(vectors: Any) -> Tensor:
    return normalize(torch.as_tensor(vectors), dim=1)
