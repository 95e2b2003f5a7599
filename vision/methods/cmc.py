"""CMC: lightness against a memory of colours, and the reverse (Tian et al. 2020).

Shapes: B images, D dimensions of each head, n images of the training set.
"""

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from shared import Pairs, query_key
from shared.distributed import broadcast, gather, local_slice
from shared.pairs import unit_rows
from shared.precision import upcast
from vision.config import Config
from vision.methods.base import Compared, Networks, Step


class CMC(Networks):
    """As in its program, an image's positive is its own entry in the other memory.

    The negatives are entries drawn with replacement; here they are drawn once for the batch.
    """

    lab = True
    memory: Tensor  # (2, n, D)

    def __init__(self, config: Config, images: int) -> None:
        super().__init__(config, images)
        self.colour_head = self.make_head()
        # As in its program: uniform numbers, of unit mean squared norm.
        bound = math.sqrt(3 / config.head_output)
        memory = torch.rand(2, images, config.head_output) * 2 * bound - bound
        self.register_buffer("memory", memory)

    def compare(self, views: tuple[Tensor, ...], step: Step) -> Compared:
        """Each half of the encoder against the other's memory."""
        assert step.samples is not None
        features = self.encoder(views[0])
        lightness, colours = features.chunk(2, dim=1)
        embeddings = self.head(lightness), self.colour_head(colours)
        count, queue = self.memory.shape[1], self.config.queue
        drawn = broadcast(torch.randint(count, (queue,), device=self.memory.device))
        samples = step.samples[local_slice(len(step.samples))]
        pairs = [
            query_key(query, other[samples], other[drawn], in_batch=False, gather=gather)
            for query, other in zip(embeddings, (self.memory[1], self.memory[0]), strict=True)
        ]
        return pairs, [features]

    @torch.no_grad()
    def remember(self, pairs: list[Pairs], step: Step) -> None:
        """Move the memory towards the embeddings of both directions."""
        momentum = self.config.memory_momentum
        for memory, direction in zip(self.memory, pairs, strict=True):
            anchor = unit_rows(upcast(gather(direction.anchor.detach())))
            moved = momentum * memory[step.samples] + (1 - momentum) * anchor
            memory[step.samples] = unit_rows(moved)

    @staticmethod
    def faults(config: Config) -> Iterator[str]:
        """Of images and memory."""
        if config.statistics != "none":
            yield (
                f"cmc converts images in [0, 1] to Lab; set statistics to 'none', not "
                f"{config.statistics!r}"
            )
        if config.queue < 1:
            yield f"queue {config.queue}: cmc's only negatives come from it; use 1 or more"
        if not 0 <= config.memory_momentum < 1:
            yield f"memory_momentum is from 0 to below 1; got {config.memory_momentum}"
