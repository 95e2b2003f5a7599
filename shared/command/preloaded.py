"""Imported last by the server that processes of cells are forked from, so that they start faster.

This takes seconds: MKL measures the processor's clock before it reports its code path, and torch
imports its compiler for deterministic operations, compiled or not. Nothing here may start a thread
or use a GPU, since forked processes would inherit them.
"""

import torch._inductor.config  # what torch.use_deterministic_algorithms imports

from shared.command.preloading import SHOW
from shared.experiment.environment import arithmetic_used

torch.__config__.show = SHOW
arithmetic_used()
