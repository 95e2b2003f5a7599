"""The environment variable that switches CUDA graphs off; needs no torch."""

import os

from shared.errors import UserError

SWITCH = "SUITE_GRAPHS"  # the environment variable that switches graphs off


def graphs_wanted() -> bool:
    """Whether graphs are used: yes, unless ``SUITE_GRAPHS=0``."""
    value = os.environ.get(SWITCH) or "1"
    if value not in ("0", "1"):
        raise UserError(f"{SWITCH}={value}: write 1 for CUDA graphs, 0 for none")
    return value == "1"
