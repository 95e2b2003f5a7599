"""Imported last by the server that processes of cells are forked from, so that they start faster.

torch imports its compiler for deterministic operations, compiled or not, which takes seconds.
Nothing here may start a thread or use a GPU, since forked processes would inherit them.
"""

import torch._inductor.config  # what torch.use_deterministic_algorithms imports

from shared.command.preloading import SHOW

torch.__config__.show = SHOW
