"""The configuration of a run of arrows."""

import dataclasses
from dataclasses import dataclass

from shared import Objective, info_nce, term


@dataclass(frozen=True)
class Config:
    """What a run trains."""

    objective: Objective = Objective(term(info_nce, temperature=0.5))  # noqa: RUF009 (frozen)
    noise: float = 0.4  # standard deviation of what is added to a vector for a view of it
    steps: int = 300
    batch_size: int = 128
    protocol: str = "nearest-mean-v1"
    seed: int = 0

    def reduced(self) -> "Config":
        """The configuration of the smoke tier."""
        return dataclasses.replace(self, steps=20, batch_size=32)
