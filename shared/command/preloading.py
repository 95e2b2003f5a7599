"""Imported first by the server that processes of cells are forked from, to stay off the GPU.

torch_geometric asks, when it is imported, whether torch was built with MKL, by the text of
``torch.__config__.show()``. The same text has the version of CUDA's driver, and asking for that
starts CUDA: no process that is forked afterwards could use a GPU. Until :mod:`preloaded` takes it
back, the text is the answer to that question alone.
"""

import torch

SHOW = torch.__config__.show

torch.__config__.show = lambda: "" if torch.backends.mkl.is_available() else "USE_MKL=OFF"
