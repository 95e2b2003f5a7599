"""The graph domain: GraphCL's unsupervised pretraining on TU datasets, with any objective.

The names of ``__init__.pyi`` are imported when first used: planning and reporting stay quick.
"""

from pathlib import Path

import shared

if [*getattr(shared, "__path__", ())] != [str(Path(__file__).parents[1] / "shared")]:
    raise ImportError(
        f"{shared.__spec__.origin or shared.__path__[0]} hides the suite's package 'shared': start "
        "where it does not come first on sys.path; docs/own.md says more"
    )
from shared.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
