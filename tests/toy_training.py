"""A small training run with everything that has a state; its own program, so that it can be killed.

python tests/toy_training.py FOLDER STEPS [PADDING_IN_MB] [PAUSE_IN_SECONDS]
"""

import random
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import nn

from shared.errors import UserError
from shared.runs import Run


@dataclass(frozen=True)
class ToyConfig:
    steps: int
    seed: int = 7
    protocol: str = "toy-v1"

    def reduced(self) -> "ToyConfig":
        return self


class Padded(nn.Module):
    """A model whose checkpoint takes a while to write."""

    def __init__(self, megabytes: float) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(), nn.Linear(8, 1)
        )
        self.register_buffer("padding", torch.zeros(int(megabytes * 2**18)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


def train(
    config: ToyConfig, run: Run, megabytes: float = 0.0, pause: float = 0.0
) -> dict[str, float]:
    model = Padded(megabytes)
    optimiser = torch.optim.Adam(model.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, config.steps)
    first = run.track(model=model, optimiser=optimiser, schedule=schedule)
    for step in range(first, config.steps):
        # One draw from each global generator: all of them must come back after a kill.
        x = torch.randn(16, 4) + random.random() + float(np.random.rand())
        loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        schedule.step()
        run.log(step + 1, loss=float(loss.detach()))
        run.checkpoint(step + 1)
        time.sleep(pause)
    weights = torch.cat([p.detach().flatten() for p in model.parameters()])
    return {"accuracy": float(weights.double().sum()), "norm": float(weights.double().norm())}


if __name__ == "__main__":
    folder, steps, *rest = sys.argv[1:]
    torch.set_num_threads(1)
    config = ToyConfig(int(steps))
    try:
        with Run(Path(folder), config) as run:
            run.finish(train(config, run, *map(float, rest)))
    except UserError as error:
        sys.exit(f"error: {error}")
