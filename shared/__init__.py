"""The loss core: losses, margins and regularisers of contrastive learning, for any domain.

It needs torch, numpy and lazy-loader only. The names of ``__init__.pyi`` are imported when first
used, so that the command line answers before torch is imported.
"""

import lazy_loader

__version__ = "0.1.0"  # the one place; pyproject.toml reads it here
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
