"""What every process of a cell would find alike, found once by the server that they are forked of.

It takes seconds: MKL measures the processor's clock before it says which path it takes, and torch
imports its compiler where operations are to be deterministic, compiled or not. Nothing here starts
a thread or asks for a GPU: a process that is forked must find neither.
"""

import torch._inductor.config  # noqa: F401  (what torch.use_deterministic_algorithms imports)

from shared.experiment.environment import arithmetic_used, lock_hash

arithmetic_used()
lock_hash()
