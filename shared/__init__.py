"""The loss core: losses, margins and regularisers of contrastive learning, for any domain.

Importing it needs torch and numpy only. The names below are imported when first used, so that the
command line answers before torch is there.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shared.checks import Temperature
    from shared.losses import alignment, debiased_nce, hard_nce, info_nce, margin_nce, max_margin
    from shared.margins import (
        angular_margin,
        attenuation_weight,
        curvature_weight,
        margin_ratio,
        scale_gradient,
        subtractive_margin,
    )
    from shared.momentum import Teacher, enqueue, follow, random_bank
    from shared.objective import Criterion, Objective, Projection, Term, term
    from shared.pairs import (
        Pairs,
        context_window,
        cosine,
        inner_product,
        local_global,
        query_key,
        same_label,
        two_views,
    )
    from shared.penalties import band_statistics, consistency, distance_polarization
    from shared.projection import LowRankProjection

__version__ = "0.1.0"  # the one place; pyproject.toml reads it here

__all__ = [
    "Criterion",
    "LowRankProjection",
    "Objective",
    "Pairs",
    "Projection",
    "Teacher",
    "Temperature",
    "Term",
    "alignment",
    "angular_margin",
    "attenuation_weight",
    "band_statistics",
    "consistency",
    "context_window",
    "cosine",
    "curvature_weight",
    "debiased_nce",
    "distance_polarization",
    "enqueue",
    "follow",
    "hard_nce",
    "info_nce",
    "inner_product",
    "local_global",
    "margin_nce",
    "margin_ratio",
    "max_margin",
    "query_key",
    "random_bank",
    "same_label",
    "scale_gradient",
    "subtractive_margin",
    "term",
    "two_views",
]

_HOMES = {
    "Criterion": "objective",
    "LowRankProjection": "projection",
    "Objective": "objective",
    "Pairs": "pairs",
    "Projection": "objective",
    "Teacher": "momentum",
    "Temperature": "checks",
    "Term": "objective",
    "alignment": "losses",
    "angular_margin": "margins",
    "attenuation_weight": "margins",
    "band_statistics": "penalties",
    "consistency": "penalties",
    "context_window": "pairs",
    "cosine": "pairs",
    "curvature_weight": "margins",
    "debiased_nce": "losses",
    "distance_polarization": "penalties",
    "enqueue": "momentum",
    "follow": "momentum",
    "hard_nce": "losses",
    "info_nce": "losses",
    "inner_product": "pairs",
    "local_global": "pairs",
    "margin_nce": "losses",
    "margin_ratio": "margins",
    "max_margin": "losses",
    "query_key": "pairs",
    "random_bank": "momentum",
    "same_label": "pairs",
    "scale_gradient": "margins",
    "subtractive_margin": "margins",
    "term": "objective",
    "two_views": "pairs",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(f"shared.{_HOMES[name]}"), name)
    if name in ("distributed", "svm", *_HOMES.values()):  # after a plain ``import shared``, too
        return importlib.import_module(f"shared.{name}")
    raise AttributeError(f"module 'shared' has no attribute {name!r}")
