"""Memory and time of a step in chunks beside the plain step.

Run it as ``python benchmarks/large_batch.py``. The step is SimCLR's loss and its gradient for two
views of N instances under a transformer of 8 layers, in float32 on one core. Everything is measured
in processes of its own. Peak memory is that of a process which does one step and nothing else, the
interpreter and torch included, the median over processes; times are the core's, whatever else the
machine does, and the medians of steps that alternate in one process.

All processes have ``MALLOC_MMAP_THRESHOLD_``: by default glibc raises that threshold to the largest
block that was freed, and then holds on to a multiple of what a step in chunks uses at any time.

The plain step of 4096 instances needs tens of GB. The largest plain step is therefore the one whose
estimated peak is below ``--memory``: two small plain steps give the memory of an instance.
"""

import argparse
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from shared import Criterion, Objective, info_nce, large_batch, term

WORDS, TOKENS, WIDTH, LAYERS = 1000, 64, 128, 8
SCORES = 6  # float32 matrices of all pairs that a plain step holds at a time, about
MALLOC_MMAP_THRESHOLD = 1_000_000  # bytes from which on a block is given back when it is freed
MARGIN = 1.1  # measured peaks lie up to so far above the estimates


class Encoder(nn.Module):
    """Ids (B, T) -> (B, WIDTH), the mean over the tokens of a transformer without dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, LAYERS)

    def forward(self, ids: Tensor) -> Tensor:
        """The embeddings of B sequences."""
        outputs: Tensor = self.layers(self.embedding(ids)).mean(1)
        return outputs


def networks() -> tuple[Encoder, Criterion]:
    """The encoder, and InfoNCE's criterion."""
    torch.manual_seed(0)
    return Encoder(), Objective(term(info_nce, temperature=0.1)).build(dim=WIDTH)


def step(encoder: Encoder, criterion: Criterion, views: Tensor, chunk: int | None) -> float:
    """Seconds of the core for loss and gradient of two views (2, N, TOKENS)."""
    start = time.process_time()
    encoder.zero_grad()
    if chunk is None:
        loss = criterion.of_views(*map(encoder, views))
    else:
        loss = large_batch(encoder, criterion, list(views), chunk)
    loss.backward()
    return time.process_time() - start


def alone(size: int, chunk: int | None) -> tuple[float, float]:
    """Peak memory in MB and seconds of a process that does one step."""
    seconds = step(*networks(), torch.randint(WORDS, (2, size, TOKENS)), chunk)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, seconds


def alternating(size: int, chunk: int, repeats: int) -> tuple[float, float]:
    """Seconds of the plain step and of the step in chunks, medians over ``repeats`` of each."""
    encoder, criterion = networks()
    views = torch.randint(WORDS, (2, size, TOKENS))
    seconds = [
        [step(encoder, criterion, views, part) for part in (None, chunk)]
        for _ in range(repeats + 1)
    ][1:]
    plain, chunked = (statistics.median(times) for times in zip(*seconds, strict=True))
    return plain, chunked


def measured(kind: str, *numbers: int) -> tuple[float, float]:
    """What :func:`alone` or :func:`alternating` returns in a process of its own."""
    command = [sys.executable, __file__, f"--{kind}", *map(str, numbers)]
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": str(MALLOC_MMAP_THRESHOLD)}
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment)
    first, second = map(float, done.stdout.split())
    return first, second


def row(size: int, chunk: int | None, repeats: int) -> tuple[float, float]:
    """Peak memory in MB and seconds of one step, the medians over processes; prints them."""
    measurements = [measured("alone", size, chunk or 0) for _ in range(repeats)]
    peak, seconds = (statistics.median(values) for values in zip(*measurements, strict=True))
    print(f"| {size} | {chunk or 'plain'} | {peak:.0f} | {seconds:.1f} |", flush=True)
    return peak, seconds


def largest(size: int, chunk: int, megabytes: float, peaks: Mapping[int, float]) -> int:
    """The most instances, in whole chunks up to ``size``, whose plain step fits into the memory.

    The estimate is the line through two measured peaks, and the scores of all pairs.

    Args:
        size: N.
        chunk: instances of a chunk.
        megabytes: the memory.
        peaks: MB by instances of two plain steps.
    """
    (few, low), (more, high) = peaks.items()
    slope = (high - low) / (more - few)

    def peak(instances: int) -> float:
        scores = SCORES * 4 * (2 * instances) ** 2 / 2**20
        return MARGIN * (low + slope * (instances - few) + scores)

    fitting = [batch for batch in range(chunk, size + 1, chunk) if peak(batch) < megabytes]
    if not fitting:
        sys.exit(f"the plain step of {few} instances takes {low:.0f} MB; raise --memory")
    estimates = ", ".join(f"{batch}: {peak(batch) / 1024:.1f} GB" for batch in (fitting[-1], size))
    print(f"estimated peaks of the plain step: {estimates}", file=sys.stderr, flush=True)
    return fitting[-1]


def main() -> None:
    """Print peak memory by size, and the ratios to the plain step."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--size", type=int, default=4096, help="N, instances of the large batch")
    parser.add_argument("--chunk", type=int, default=64)
    parser.add_argument("--memory", type=float, default=8.0, help="GB for the largest plain step")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--alone", type=int, nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--alternating", type=int, nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.alone:
        size, chunk = options.alone
        return print(*alone(size, chunk or None))
    if options.alternating:
        return print(*alternating(*options.alternating))
    size, chunk, repeats = options.size, options.chunk, options.repeats
    print("| instances | chunk | peak MB | s |\n|---|---|---|---|", flush=True)
    small, _ = row(chunk, None, repeats)
    peaks = {chunk: small, 2 * chunk: row(2 * chunk, None, repeats)[0]}
    most = largest(size, chunk, 1024 * options.memory, peaks)
    row(most, None, repeats)
    peak, seconds = row(size, chunk, repeats)
    plain, chunked = measured("alternating", most, chunk, repeats)
    print(
        f"\n{size} instances in chunks of {chunk}, over the plain step\n"
        f"- peak memory, over {chunk} plain: {peak / small:.2f} (goal 1.3)\n"
        f"- time, both with {most}, the largest plain: {chunked / plain:.2f} (goal 1.6)\n"
        f"- time, over {size} plain if its time grows as its instances: "
        f"{seconds / (plain * size / most):.2f} (goal 1.6)"
    )


if __name__ == "__main__":
    main()
