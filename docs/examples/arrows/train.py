"""The training of arrows, and its score."""

import torch
from torch import Tensor, nn

from arrows.config import Config
from shared import two_views
from shared.experiment.run import Run

GROUPS, WIDTH = 8, 16


def sample(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Vectors (count, WIDTH) of length 1, and their groups (count,)."""
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randn(GROUPS, WIDTH, generator=torch.Generator().manual_seed(0))
    groups = torch.randint(GROUPS, (count,), generator=generator)
    vectors = centres[groups] + 1.5 * torch.randn(count, WIDTH, generator=generator)
    return nn.functional.normalize(vectors, dim=1), groups


def measure(config: Config, run: Run) -> dict[str, float]:
    """Learn an encoder without the groups; ``accuracy`` in percent."""
    vectors, groups = sample(2000, config.seed)
    encoder = nn.Sequential(nn.Linear(WIDTH, 64), nn.ReLU(), nn.Linear(64, 8))
    criterion = config.objective.build(8)
    modules = nn.ModuleList([encoder, criterion])
    optimiser = torch.optim.Adam(modules.parameters(), lr=1e-3)
    run.track(modules=modules, optimiser=optimiser)
    for step in run.steps(config.steps, "training", log_every=10, save_every=60.0):
        batch = vectors[torch.randint(len(vectors), (config.batch_size,))]
        one, two = (batch + config.noise * torch.randn_like(batch) for _ in range(2))
        loss, parts = criterion(two_views(encoder(one), encoder(two)), step=step)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        run.means.add({"loss": loss.detach(), **parts})
    unseen, wanted = sample(1000, config.seed + 1_000_000)
    with torch.no_grad():
        features, test = encoder(vectors), encoder(unseen)
    means = torch.stack([features[groups == group].mean(0) for group in range(GROUPS)])
    found = torch.cdist(test, means).argmin(1)
    return {"accuracy": 100 * float((found == wanted).float().mean())}
