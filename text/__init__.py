"""The text domain: quick-thoughts on books, with any objective, and the evaluation on six tasks.

The names of ``__init__.pyi`` are imported when first used: planning and reporting stay quick.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
