"""Time of a pretraining epoch on graphs, and what augmentation and loss cost beside the encoder.

Run it as ``SUITE_DATA=data python benchmarks/graph.py`` or with ``--data-root data``, after
``./reproduce.sh data graph``; ``--threads 2`` for the figures the authors' program was timed with.
Without DD it takes the embedded graphs in its place.

It trains for a few epochs on each dataset, once per loss (GraphCL's InfoNCE and the max-margin
loss) and per reading of the augmentations (the paper's text and the authors' program), each graph
under node dropping or a subgraph, and prints medians over the epochs after the first:

* seconds per epoch, all included: batches, one augmented view, both passes, loss, optimiser;
* the share of augmentation and loss in it, the loss from the projected embeddings to their
  gradients, and their ratio to the forward and backward passes of the encoder on the original
  batch and on the very view that was made of it.
"""

import argparse
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from graph.augmentation import add_self_loops_but_last, augment
from graph.data import ATLAS, Graphs, batches, load, permutation
from graph.encoder import Encoder, ProjectionHead
from shared import cosine, info_nce, max_margin, query_key
from shared.experiment.data import MissingData, data_root

BATCH_SIZE, LEARNING_RATE = 128, 0.01
AUGMENTATIONS = ("node_drop", "subgraph")
# Seconds per epoch of the authors' program (Shen-Lab/GraphCL, unsupervised_TU), two CPU cores.
PROGRAM_SECONDS = {"MUTAG": 0.45, "DD": 139.0}
PROGRAM_READING = {
    "ratio": 0.1,
    "add_edges": False,
    "mask_with_noise": True,
    "one_hop": True,
    "drop_isolated": True,
}

Loss = Callable[[Tensor, Tensor], Tensor]


def graphcl(x: Tensor, z: Tensor) -> Tensor:
    """GraphCL's loss: cosines over 0.2, the positive left out of the denominator."""
    pairs = query_key(x, z)
    similarity = cosine(pairs.anchor, pairs.candidate)
    return info_nce(pairs, similarity, temperature=0.2, positive_in_denominator=False).mean()


def mmcl(x: Tensor, z: Tensor) -> Tensor:
    """The max-margin loss with the negatives of the first view, closed form."""
    pairs = query_key(z, x)
    similarity = cosine(pairs.anchor, pairs.candidate)
    return max_margin(pairs, similarity, gamma=0.5, cost=100.0, ridge=0.1).mean()


class Trainer:
    """A pretraining run that keeps a clock on each of its stages."""

    def __init__(self, graphs: Graphs, loss: Loss, program: bool) -> None:
        torch.manual_seed(0)
        self.graphs, self.loss, self.program = graphs, loss, program
        self.encoder = Encoder(graphs.x.size(1))
        self.head = ProjectionHead(self.encoder.dim)
        parameters = [*self.encoder.parameters(), *self.head.parameters()]
        self.optimiser = torch.optim.Adam(parameters, lr=LEARNING_RATE)
        self.clock: defaultdict[str, float] = defaultdict(float)

    def epoch(self, number: int) -> dict[str, float]:
        """Seconds of each stage of one epoch, and of all of it."""
        self.clock.clear()
        with self.stage("epoch"):
            order = permutation(self.graphs.num_graphs, 0, number)
            generator = torch.Generator().manual_seed(number)
            for batch in batches(self.graphs, BATCH_SIZE, order):
                self.step(batch, generator)
        return dict(self.clock)

    def step(self, batch: Graphs, generator: torch.Generator) -> None:
        """One step; embeddings are cut off between the stages, so that each is timed alone."""
        with self.stage("augmentation"):
            original = add_self_loops_but_last(batch) if self.program else batch
            settings = PROGRAM_READING if self.program else {}
            view = augment(original, AUGMENTATIONS, generator, **settings)
        with self.stage("encoder"):
            features = [
                self.encoder(g.x, g.edge_index, g.batch, g.num_graphs) for g in (original, view)
            ]
        self.optimiser.zero_grad()
        leaves = [f.detach().requires_grad_() for f in features]
        projected = [self.head(leaf) for leaf in leaves]
        ends = [p.detach().requires_grad_() for p in projected]
        with self.stage("loss"):
            self.loss(*ends).backward()
        torch.autograd.backward(projected, [end.grad for end in ends])
        with self.stage("encoder"):
            torch.autograd.backward(features, [leaf.grad for leaf in leaves])
        self.optimiser.step()

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Adds what happens inside to the clock of ``name``."""
        start = time.perf_counter()
        yield
        self.clock[name] += time.perf_counter() - start


def main() -> None:
    """Print one line per dataset, reading and loss."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data-root", help="folder of the datasets (default: SUITE_DATA, data/)")
    parser.add_argument("--epochs", type=int, default=7, help="epochs to time, after one more")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    root = data_root(arguments.data_root)

    print(f"{arguments.threads} threads, batches of {BATCH_SIZE}; milliseconds per epoch")
    print(
        f"{'dataset':8}{'reading':9}{'loss':11}{'augment':>9}{'loss':>8}{'encoder':>9}{'ratio':>8}"
        f"{'epoch':>9}{'program':>10}{'faster':>9}"
    )
    for name in ("MUTAG", "DD"):
        try:
            graphs = load(name, root)
        except MissingData as missing:
            print(f"{missing}; taking the embedded graphs")
            name, graphs = ATLAS, load(ATLAS, root)
        variants = [
            (reading, loss, Trainer(graphs, loss, reading == "program"))
            for reading in ("paper", "program")
            for loss in (graphcl, mmcl)
        ]
        # Interleaved, so that whatever else the machine does falls on all of them.
        seconds = [
            [trainer.epoch(number) for _, _, trainer in variants]
            for number in range(arguments.epochs + 1)
        ][1:]
        for column, (reading, loss, _) in enumerate(variants):
            median = {
                stage: statistics.median(row[column][stage] for row in seconds)
                for stage in ("augmentation", "loss", "encoder", "epoch")
            }
            ratio = (median["augmentation"] + median["loss"]) / median["encoder"]
            line = (
                f"{name:8}{reading:9}{loss.__name__:11}{1e3 * median['augmentation']:9.1f}"
                f"{1e3 * median['loss']:8.1f}{1e3 * median['encoder']:9.1f}{ratio:8.2f}"
                f"{1e3 * median['epoch']:9.1f}"
            )
            if name in PROGRAM_SECONDS:
                program = PROGRAM_SECONDS[name]
                line += f"{1e3 * program:10.0f}{program / median['epoch']:8.0f}x"
            print(line)


if __name__ == "__main__":
    main()
