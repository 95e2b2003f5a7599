"""Imported first by the server that processes of cells are forked from, to stay off the GPU.

When torch_geometric is imported, it searches ``torch.__config__.show()`` for whether torch was
built with MKL. That function also reports the version of CUDA's driver, which starts CUDA, and no
process that is forked afterwards could use a GPU. It is therefore replaced by a function that only
tells about MKL, until :mod:`preloaded` restores it.
"""

import torch

SHOW = torch.__config__.show

torch.__config__.show = lambda: "" if torch.backends.mkl.is_available() else "USE_MKL=OFF"
