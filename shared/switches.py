"""The environment's variable that switches CUDA graphs off; needs no torch."""

import os

from shared.errors import UserError

SWITCH = "SUITE_GRAPHS"  # the environment's variable that switches graphs off


def graphs_wanted() -> bool:
    """Whether graphs are used: yes, but with ``SUITE_GRAPHS=0``."""
    value = os.environ.get(SWITCH) or "1"
    if value not in ("0", "1"):
        raise UserError(f"{SWITCH}={value}: write 1 for CUDA graphs, 0 for none")
    return value == "1"
