"""A small training run with everything that has a state, which can be killed."""

import dataclasses
import os
import random
import resource
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import nn

from shared.capture import CaptureFailed
from shared.distributed import local_slice, rank, replicated, synchronise
from shared.errors import UserError
from shared.experiment.data import MissingData
from shared.experiment.run import Run
from shared.switches import graphs_wanted


@dataclass(frozen=True)
class Config:
    steps: int = 3
    kind: str = "works"  # or "fails", "leaves", "nan", "missing", "killed", "graphs", or see FULL
    offset: float = 0.0
    batch_size: int = 16
    every: float = 0.0  # seconds between checkpoints
    megabytes: float = 0.0
    pause: float = 0.0
    seed: int = 7
    protocol: str = "toy-v1"

    def reduced(self) -> "Config":
        return dataclasses.replace(self, steps=2)


def full_device() -> None:
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate\n1024.00 PiB")


FULL = {
    "full": lambda: torch.empty(2**60, dtype=torch.uint8),
    "full array": lambda: np.empty(2**60, dtype=np.uint8),
    "full device": full_device,
}


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


def measure(config: Config, run: Run) -> dict[str, float]:
    if config.kind == "fails":
        raise RuntimeError("made to fail\nwith a second line")
    if config.kind == "missing" and not (run.data_root / "toys").exists():
        raise MissingData("toys", run.data_root / "toys", "./reproduce.sh data toy --dataset toys")
    if config.kind == "leaves":
        sys.exit(3)
    if config.kind == "killed" and rank() == run.processes - 1:
        os.kill(os.getpid(), signal.SIGKILL)
    if config.kind in FULL:
        FULL[config.kind]()
    if shown := os.environ.get("CUDA_VISIBLE_DEVICES"):
        run.record(**{"shown to CUDA": shown})
    model = Padded(config.megabytes)
    synchronise(model)
    optimiser = torch.optim.Adam(model.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, config.steps)
    torch.rand(rank())  # each process has a random state of its own
    first = run.track(model=model, optimiser=optimiser, schedule=schedule)
    if first and config.kind == "graphs":
        (run.folder / "resumed").write_text(str(first))
    run.score = disturbing
    forward = replicated(loss_of, model)
    own = local_slice(config.batch_size)
    for step in run.steps(config.steps, "training", save_every=config.every):
        # One draw from each global generator: all of them must come back after a kill.
        x = torch.randn(config.batch_size, 4)[own] + random.random() + float(np.random.rand())
        loss = forward(model, x)
        if config.kind == "graphs" and graphs_wanted() and step == 1:
            raise CaptureFailed("no CUDA graph (made to fail)")
        if config.kind == "nan" and step == 1:
            raise FloatingPointError(f"the loss is not finite at step {step}")
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        schedule.step()
        run.means.add({"loss": loss.detach()})
        time.sleep(config.pause)
    run.continue_on_rank_zero()
    weights = torch.cat([p.detach().flatten() for p in model.parameters()]).double()
    return {"accuracy": float(weights.sum()) + config.offset, "norm": float(weights.norm())}


def disturbing(model: Padded, **_: object) -> dict[str, float]:
    """A score that changes whatever it can reach."""
    with torch.no_grad():
        moved = model.train()(torch.randn(8, 4) + random.random() + float(np.random.rand()))
    model.eval()
    return {"moved": float(moved.mean())}


def loss_of(model: Padded, x: torch.Tensor) -> torch.Tensor:
    return (model(x) - x.sum(1, keepdim=True)).square().mean()


def program(
    folder: Path, steps: int, megabytes: float = 0.0, pause: float = 0.0, room: int = 0
) -> None:
    """A run to its end; what makes it last is no part of its configuration.

    With ``room``, larger files fail with an OSError, as they do on a full disk.
    """
    torch.set_num_threads(1)
    if room:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (room, room))
    try:
        with Run(folder, Config(steps)) as run:
            settings = dataclasses.replace(run.config, megabytes=megabytes, pause=pause)
            run.finish(measure(settings, run))
    except UserError as error:
        sys.exit(f"error: {error}")
