"""Peak memory and time of a step in chunks beside the plain step, over the size of the batch.

Run it as ``python benchmarks/large_batch.py``. The step is SimCLR's loss and its gradient for two
views of N instances under a transformer of 8 layers, in float32 on the CPU. Peak memory is that of
a process which does one step and nothing else, the interpreter and torch included; times are the
medians of steps that alternate in one process. Plain steps whose activations would not fit are left
out.
"""

import argparse
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path

import torch
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from shared import Criterion, Objective, info_nce, large_batch, term

WORDS, TOKENS, WIDTH, LAYERS = 1000, 64, 128, 8


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
    """Seconds of loss and gradient for two views (2, N, TOKENS)."""
    start = time.perf_counter()
    encoder.zero_grad()
    if chunk is None:
        loss = criterion.of_views(*map(encoder, views))
    else:
        loss = large_batch(encoder, criterion, list(views), chunk)
    loss.backward()
    return time.perf_counter() - start


def alone(size: int, chunk: int | None) -> None:
    """One step of a process, and its peak memory in MB."""
    seconds = step(*networks(), torch.randint(WORDS, (2, size, TOKENS)), chunk)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"| {size} | {chunk or 'plain'} | {peak:.0f} | {seconds:.1f} |")


def ratio(size: int, chunk: int, repeats: int) -> float:
    """The time of steps in chunks over that of plain ones, by their medians."""
    encoder, criterion = networks()
    views = torch.randint(WORDS, (2, size, TOKENS))
    seconds = [
        [step(encoder, criterion, views, each) for each in (None, chunk)]
        for _ in range(repeats + 1)
    ][1:]
    plain, chunked = (statistics.median(each) for each in zip(*seconds, strict=True))
    share: float = chunked / plain
    return share


def main() -> None:
    """Print peak memory by size, and the ratio of times."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--chunk", type=int, default=64)
    parser.add_argument("--sizes", type=int, nargs="*", default=[64, 256, 1024, 4096])
    parser.add_argument("--plain", type=int, nargs="*", default=[64, 256])
    parser.add_argument("--timed", type=int, default=256, help="the size whose times are compared")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--alone", type=int, nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.alone:
        size, chunk = options.alone
        return alone(size, chunk or None)
    print("| instances | chunk | peak MB | s |\n|---|---|---|---|", flush=True)
    for size, chunk in [
        *((size, 0) for size in options.plain),
        *((size, options.chunk) for size in options.sizes),
    ]:
        command = [sys.executable, __file__, "--alone", str(size), str(chunk)]
        subprocess.run(command, check=True)
    found = ratio(options.timed, options.chunk, options.repeats)
    print(
        f"\n{options.timed} instances in chunks of {options.chunk}: {found:.2f} of the plain time"
    )


if __name__ == "__main__":
    main()
