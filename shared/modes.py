"""Training and evaluation mode of modules."""

import contextlib
from collections.abc import Iterator

from torch import nn


@contextlib.contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Put a module into evaluation mode; at the end each of its parts has its former mode again."""
    modes = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        yield
    finally:
        module.train(modes[0][1])  # which a module may override, to do more
        for part, training in modes:  # such as a frozen batch norm, which stays in evaluation mode
            part.training = training
