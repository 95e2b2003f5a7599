"""Imported first by the server that processes of cells are forked from, and by nothing else.

The server ignores the terminal's signals, which it was started with held back.

When torch_geometric is imported, it searches ``torch.__config__.show()`` for whether torch was
built with MKL. That function also reports the version of CUDA's driver, which starts CUDA, and no
process that is forked afterwards could use a GPU. It is therefore replaced by a function that only
tells about MKL, until :mod:`preloaded` restores it.
"""

import signal

from shared.command.server import IGNORED

for number in IGNORED:
    signal.signal(number, signal.SIG_IGN)
signal.pthread_sigmask(signal.SIG_UNBLOCK, IGNORED)

import torch  # noqa: E402 (takes a second, in which signals may come)

SHOW = torch.__config__.show

torch.__config__.show = lambda: "" if torch.backends.mkl.is_available() else "USE_MKL=OFF"
