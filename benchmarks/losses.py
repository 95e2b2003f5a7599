"""Time and memory of the losses against other implementations of the same formulas.

Run it as ``python benchmarks/losses.py`` (extra ``bench``); with ``--write`` what it finds becomes
the section "Speed" of docs/numerics.md. Three comparisons, each on the same inputs for every
method, forward and backward from the embeddings to their gradients:

* ``info_nce`` against ten plain lines with ``F.cross_entropy``, which leave the own row out by
  ``masked_fill`` or by ``fill_diagonal_``, and against the NTXentLoss of lightly and of
  pytorch-metric-learning;
* the same with second derivatives: the product of the Hessian with a vector;
* ``max_margin``, which shares one factorisation or one matrix product per step over all anchors,
  against one linear system, or one matrix-vector product per step, for each anchor, as the
  authors of MMCL formulate it.

Values and gradients have to agree before anything is timed. Times are medians over interleaved
repeats in one process, and each timed call follows an untimed one of the same method: a method that
goes through tens of megabytes leaves cold caches, in which the next takes up to three times as
long. Memory is the growth of the resident set's peak over one forward and backward, in a process of
its own whose address space is limited, so that a method that needs more fails alone.

Shapes: N instances, D dimensions, M candidates, n negatives (N - 1 of one view, 2N - 2 of both).
"""

import argparse
import functools
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from shared import cosine, info_nce, max_margin, query_key, two_views
from shared.experiment.compat import make_torchvision_importable

Loss = Callable[[Tensor, Tensor], Tensor]

TEMPERATURE = 0.5
GAMMA, RIDGE, COST = 2.0, 0.1, 100.0
STEPS, STEP_SIZE = 50, 1e-3
DIM = 128
ADDRESS_SPACE = 16 * 2**30
TOLERANCE = 1e-3  # of the largest entry: what float32 leaves of the per-anchor systems
OURS = "ours"
PAGE = Path(__file__).resolve().parents[1] / "docs/numerics.md"
HEADING = "\n## Speed\n"


# Imported when first called: most processes need neither library, and both take seconds.
@functools.cache
def lightly_loss() -> Loss:
    """NT-Xent of two views, by lightly."""
    make_torchvision_importable()
    from lightly.loss import NTXentLoss

    loss: Loss = NTXentLoss(temperature=TEMPERATURE)
    return loss


@functools.cache
def metric_learning_loss() -> Loss:
    """NT-Xent of embeddings and their labels, by pytorch-metric-learning."""
    from pytorch_metric_learning.losses import NTXentLoss

    loss: Loss = NTXentLoss(temperature=TEMPERATURE)
    return loss


def info_nce_methods() -> dict[str, Loss]:
    """NT-Xent of 2N anchors, by implementation."""

    def ours(first: Tensor, second: Tensor) -> Tensor:
        pairs = two_views(first, second)
        similarity = cosine(pairs.anchor, pairs.candidate)
        return info_nce(pairs, similarity, temperature=TEMPERATURE).mean()

    def by_lightly(first: Tensor, second: Tensor) -> Tensor:
        return lightly_loss()(first, second)

    def by_metric_learning(first: Tensor, second: Tensor) -> Tensor:
        label = torch.arange(len(first)).repeat(2)
        return metric_learning_loss()(torch.cat([first, second]), label)

    def scores_of(first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
        views = torch.nn.functional.normalize(torch.cat([first, second]), dim=1)
        return views @ views.T / TEMPERATURE, torch.arange(len(views)).roll(len(first))

    def masked(first: Tensor, second: Tensor) -> Tensor:
        scores, partner = scores_of(first, second)
        diagonal = torch.eye(len(scores), dtype=torch.bool)
        return torch.nn.functional.cross_entropy(scores.masked_fill(diagonal, -torch.inf), partner)

    def filled(first: Tensor, second: Tensor) -> Tensor:
        scores, partner = scores_of(first, second)
        return torch.nn.functional.cross_entropy(scores.fill_diagonal_(-torch.inf), partner)

    return {
        OURS: ours,
        "masked cross_entropy": masked,
        "cross_entropy, filled diagonal": filled,
        "lightly": by_lightly,
        "pytorch-metric-learning": by_metric_learning,
    }


def closed_form_methods(views: int = 1) -> dict[str, Loss]:
    """MMCL's closed form with the negatives of one view or both, by implementation."""

    def per_anchor(first: Tensor, second: Tensor) -> Tensor:
        points, others = candidates(first, second, views)
        with torch.no_grad():
            matrix = per_anchor_matrices(points, others)
            twos = matrix.new_full((len(matrix), matrix.shape[1], 1), 2.0)
            weights = torch.linalg.solve(matrix, twos)[:, :, 0].clamp(0, COST)
        return decision(weights, points, second, others)

    def ours(first: Tensor, second: Tensor) -> Tensor:
        return our_max_margin(first, second, views)

    return {OURS: ours, "per anchor": per_anchor}


def projected_gradient_methods() -> dict[str, Loss]:
    """MMCL's projected gradient with a fixed step from the closed form, likewise, for one view."""

    def per_anchor(first: Tensor, second: Tensor) -> Tensor:
        points, others = candidates(first, second, 1)
        with torch.no_grad():
            matrix = per_anchor_matrices(points, others)
            twos = matrix.new_full((len(matrix), matrix.shape[1], 1), 2.0)
            weights = torch.linalg.solve(matrix, twos).clamp(0, COST)
            for _ in range(STEPS):
                weights = (weights - STEP_SIZE * (matrix @ weights - twos)).clamp(0, COST)
        return decision(weights[:, :, 0], points, second, others)

    def ours(first: Tensor, second: Tensor) -> Tensor:
        return our_max_margin(
            first,
            second,
            1,
            solver="projected_gradient",
            steps=STEPS,
            step_size=STEP_SIZE,
            momentum="none",
        )

    return {OURS: ours, "per anchor": per_anchor}


def our_max_margin(first: Tensor, second: Tensor, views: int, **numbers: object) -> Tensor:
    """The suite's loss, a scalar: the layout of MMCL's authors, or with two views Algorithm 1's."""
    if views == 1:
        pairs = query_key(second, first)
    else:
        pairs = two_views(first, second, anchors="second")
    similarity = cosine(pairs.anchor, pairs.candidate)
    return max_margin(
        pairs,
        similarity,
        gamma=GAMMA,
        ridge=RIDGE,
        cost=COST,
        **numbers,  # type: ignore[arg-type]
    ).mean()


def rbf(first: Tensor, second: Tensor) -> Tensor:
    """RBF kernel of the rows scaled to unit length, (N, D), (M, D) -> (N, M)."""
    first = torch.nn.functional.normalize(first, dim=1)
    second = torch.nn.functional.normalize(second, dim=1)
    return torch.exp(-GAMMA * (2 - 2 * first @ second.T))


def candidates(first: Tensor, second: Tensor, views: int) -> tuple[Tensor, Tensor]:
    """The points of so many views, (M, D), and which are negatives of each anchor, (N, n).

    Point i is the positive of anchor i.
    """
    points = first if views == 1 else torch.cat([first, second])
    position = torch.arange(len(points))
    same = position % len(first) == torch.arange(len(first))[:, None]
    return points, position.expand_as(same)[~same].view(len(first), -1)


def per_anchor_matrices(points: Tensor, others: Tensor) -> Tensor:
    """Proposition 1's Delta with the ridge for every anchor, (N, n, n)."""
    kernel = rbf(points, points)
    to_positive = kernel[: len(others)].gather(1, others)
    among = kernel[others[:, :, None], others[:, None, :]]
    delta = 1 + among - to_positive[:, :, None] - to_positive[:, None, :]
    return delta + RIDGE * torch.eye(others.shape[1])


def decision(weights: Tensor, points: Tensor, second: Tensor, others: Tensor) -> Tensor:
    """Mean decision function of the second views, for dual weights (N, n) on their negatives."""
    kernel = rbf(second, points)
    return ((weights * kernel.gather(1, others)).sum(1) - weights.sum(1) * kernel.diagonal()).mean()


HESSIAN = "info_nce, Hessian-vector product"
COMPARISONS: dict[str, Callable[[], dict[str, Loss]]] = {
    "info_nce": info_nce_methods,
    HESSIAN: info_nce_methods,
    "closed form": closed_form_methods,
    "closed form, both views": functools.partial(closed_form_methods, 2),
    "projected gradient": projected_gradient_methods,
}


def embeddings(size: int, dim: int) -> tuple[Tensor, Tensor]:
    """Two views of N instances, (N, D) each, as leaves that take a gradient."""
    generator = torch.Generator().manual_seed(0)
    first = torch.randn(size, dim, generator=generator)
    second = first + 0.5 * torch.randn(size, dim, generator=generator)
    return first.requires_grad_(), second.requires_grad_()


Derivatives = Callable[[Loss, Tensor, Tensor], tuple[Tensor, ...]]


def forward_backward(loss: Loss, first: Tensor, second: Tensor) -> tuple[Tensor, ...]:
    """The value and its gradients with respect to both views."""
    value = loss(first, second)
    return value.detach(), *torch.autograd.grad(value, (first, second))


def hessian_vector(loss: Loss, first: Tensor, second: Tensor) -> tuple[Tensor, ...]:
    """The product of the Hessian with a vector, here the views themselves, for both views."""
    views = (first, second)
    slopes = torch.autograd.grad(loss(*views), views, create_graph=True)
    along = first.new_zeros(())
    for slope, view in zip(slopes, views, strict=True):
        along = along + (slope * view.detach()).sum()
    return torch.autograd.grad(along, views)


def derivatives(comparison: str) -> Derivatives:
    """What is measured in a comparison."""
    return hessian_vector if comparison == HESSIAN else forward_backward


def measure_memory(comparison: str, name: str, size: int, dim: int) -> dict[str, float]:
    """Growth of the peak resident set in MB, in this process."""
    loss, measured = COMPARISONS[comparison]()[name], derivatives(comparison)
    measured(loss, *embeddings(8, dim))
    first, second = embeddings(size, dim)
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE, ADDRESS_SPACE))
    # The peak starts again from what is resident now: imports and the parent process, whose peak
    # getrusage hands down to this one, would hide what the loss needs.
    Path("/proc/self/clear_refs").write_text("5")
    before = peak_resident()
    measured(loss, first, second)
    return {"megabytes": peak_resident() - before}


def peak_resident() -> float:
    """Peak of the resident set in MB, as Linux records it."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) / 1024


def measure_time(
    comparison: str, names: list[str], size: int, dim: int, seconds: float
) -> dict[str, float]:
    """Median seconds of each method, after checking that values and gradients agree.

    Before each timed call the method runs once more, so that none is timed in the cold caches that
    another leaves.
    """
    methods = {name: COMPARISONS[comparison]()[name] for name in names}
    first, second = embeddings(size, dim)
    measured = derivatives(comparison)
    expected = measured(methods[OURS], first, second)
    for name, loss in methods.items():
        for actual, want in zip(measured(loss, first, second), expected, strict=True):
            difference = float((actual - want).abs().max() / want.abs().max())
            if not difference < TOLERANCE:
                raise AssertionError(f"{name} differs from {OURS} by {difference:.1e}")
    samples: dict[str, list[float]] = {name: [] for name in methods}
    started = time.perf_counter()
    while len(samples[OURS]) < 3 or time.perf_counter() - started < seconds:
        for name, loss in methods.items():
            measured(loss, first, second)
            before = time.perf_counter()
            measured(loss, first, second)
            samples[name].append(time.perf_counter() - before)
    return {name: statistics.median(times) for name, times in samples.items()}


def in_subprocess(threads: int, *request: object) -> dict[str, float] | None:
    """A measurement in a fresh process; None if it ran out of memory."""
    environment = os.environ | {"OMP_NUM_THREADS": str(threads)}
    command = [sys.executable, __file__, "--request", json.dumps(request)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        result: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
        return result
    if "can't allocate memory" in done.stderr or "MemoryError" in done.stderr:
        return None
    raise RuntimeError(f"{' '.join(map(str, request))} failed:\n{done.stderr}")


def compare(comparison: str, size: int, dim: int, threads: int, seconds: float) -> str:
    """A line of the comparison's table, which is printed too: time, ratio and memory."""
    names = list(COMPARISONS[comparison]())
    memory = {name: in_subprocess(threads, "memory", comparison, name, size, dim) for name in names}
    alive = [name for name in names if memory[name] is not None]
    times = in_subprocess(threads, "time", comparison, alive, size, dim, seconds)
    if times is None:
        raise RuntimeError(f"{comparison} at N = {size} ran out of memory while being timed")
    cells = [comparison, str(size)]
    for name in names:
        used = memory[name]
        if used is None:
            cells.append(f"more than {ADDRESS_SPACE // 2**30} GB")
            continue
        ratio = "" if name == OURS else f" ({times[OURS] / times[name]:.3g})"
        cells.append(f"{times[name] * 1e3:.3g}{ratio}, {used['megabytes']:.3g}")
    line = f"| {' | '.join(cells)} |"
    print(line, flush=True)
    return line


def machine(threads: int) -> str:
    """How many threads of which processor, and torch's version."""
    names = [
        line.partition(":")[2].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    ]
    processor = names[0] if names else platform.machine()
    count = "one thread" if threads == 1 else f"{threads} threads"
    return f"{count} of {len(names)} cores of {processor}, torch {torch.__version__}"


def write_section(heading: str, text: str) -> None:
    """Put a text under a heading of docs/numerics.md, up to the next one, or at its end."""
    before, present, after = PAGE.read_text(encoding="utf-8").partition(heading)
    _, following, rest = after.partition("\n## ")
    if not present:
        before = before.rstrip("\n") + "\n"
    PAGE.write_text(f"{before}{heading}{text}{following}{rest}", encoding="utf-8")


def main() -> None:
    """The comparisons, or one measurement that a parent process asked for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="for info_nce")
    parser.add_argument("--seconds", type=float, default=5.0, help="of timing per comparison")
    parser.add_argument("--write", action="store_true", help="into docs/numerics.md")
    parser.add_argument("--request", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.request:
        kind, *rest = json.loads(arguments.request)
        measure = measure_memory if kind == "memory" else measure_time
        print(json.dumps(measure(*rest)))
        return
    threads, seconds = arguments.threads, arguments.seconds
    text = f"""
Measured by `./reproduce.sh benchmark` on {machine(threads)}, MMCL's
solvers on one thread, forward and backward from the embeddings to their gradients, D = {DIM},
float32. Each cell has the median milliseconds, in parentheses the time of this suite as a share of
the other's (above 1 it is slower), and by how many MB memory grows. In small batches the difference
is mostly the checks of the input and the building of pairs.
"""
    sizes = (64, 128, 256, 512, 1024, 4096)
    solvers = ("closed form", "closed form, both views", "projected gradient")
    sections: list[tuple[list[tuple[str, int]], int]] = [
        ([*(("info_nce", size) for size in sizes), (HESSIAN, 256)], threads),
        ([(solver, 256) for solver in solvers], 1),
    ]
    for lines_of, count in sections:
        names = ["this suite", *COMPARISONS[lines_of[0][0]]()]
        names.remove(OURS)
        head = ["what", "N", *names]
        top = f"| {' | '.join(head)} |\n{'|---' * len(head)}|"
        print(top, flush=True)
        lines = [compare(*each, DIM, count, seconds) for each in lines_of]
        text += "\n".join(["", top, *lines, ""])
    if arguments.write:
        write_section(HEADING, text)


if __name__ == "__main__":
    main()
