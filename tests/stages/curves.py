"""The first losses of every domain's own loop on 1, 2 and 4 processes; as a script, a table.

python -m tests.stages.curves [CASE ...]    measures, and writes docs/processes.csv
"""

import csv
import dataclasses
import importlib
import io
import math
import os
import sys
import tempfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from shared import (
    Objective,
    Projection,
    alignment,
    distance_polarization,
    hard_nce,
    info_nce,
    max_margin,
    term,
)
from shared.command.server import preloaded
from shared.experiment.run import Run
from tests.stages import forked
from vision.methods.swav import swapped_prediction

ROOT = Path(__file__).resolve().parents[2]
WORLDS = (1, 2, 4)
STEPS = 20
# Of these the test's: what is wrong in a gradient shows in the second, and the graphs' second batch
# is a smaller one, whose gradient shows in the third.
COMPARED = 3
NCE = Objective(term(info_nce, temperature=0.5))
REGULARISED = Objective(
    term(hard_nce, temperature=0.5, tau_plus=0.1, beta=1.0),
    (term(distance_polarization, weight=0.1),),
    Projection(0.1, {"norm": "nuclear", "alpha": 0.1}),
)
SMALL = {"backbone": "resnet8", "image_size": 16, "batch_size": 16, "epochs": 4}
UNSCALED_NCE = Objective(term(info_nce, temperature=1.0))
SENTENCES = {"batch_size": 48, "reach": 2, "objective": UNSCALED_NCE}
CLIPPED = {**SENTENCES, "learning_rate": 0.02, "clip": 0.01}  # so small that it is in effect
# Of 128 graphs: the last batch of an epoch has 40.
GRAPHS = {"batch_size": 88, "epochs": 12}
CLIPS = {"epochs": 7}
# By name: the domain, and what differs from its smoke tier.
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "vision, SimCLR": ("vision", {**SMALL, "objective": REGULARISED}),
    "vision, MoCo v2": ("vision", {**SMALL, "method": "moco_v2", "objective": NCE}),
    "vision, BYOL": (
        "vision",
        {**SMALL, "method": "byol", "symmetric": True, "objective": Objective(term(alignment))},
    ),
    "vision, MoCHI": (
        "vision",
        {**SMALL, "method": "moco_v2", "mixed": (16, 8, 4), "mixed_from": 0.1, "objective": NCE},
    ),
    "vision, SwAV": (
        "vision",
        {
            **SMALL,
            "method": "swav",
            "prototypes": 16,
            "small_crops": 2,
            "small_size": 12,
            "queue": 32,
            "objective": Objective(
                term(swapped_prediction), (term(distance_polarization, weight=0.1),)
            ),
        },
    ),
    "vision, CMC": (
        "vision",
        {
            **SMALL,
            "image_size": 32,
            # Two batches an epoch: the third step compares with what the first has remembered.
            "batch_size": 32,
            "epochs": 10,
            "learning_rate": 1e-3,
            "method": "cmc",
            "queue": 32,
            "statistics": "none",
            "objective": NCE,
        },
    ),
    "text, quick-thoughts": ("text", SENTENCES),
    "text, zeros for a sentence and itself": (
        "text",
        {
            "batch_size": 48,
            "diagonal": "zero",
            "objective": Objective(
                term(info_nce, temperature=1.0), (term(distance_polarization, weight=0.1),)
            ),
        },
    ),
    "graph, GraphCL": ("graph", {**GRAPHS, "objective": REGULARISED}),
    "graph, MMCL, both views": (
        "graph",
        {
            **GRAPHS,
            "learning_rate": 1e-4,
            "pairs": "both",
            "objective": Objective(term(max_margin, gamma=2.0)),
        },
    ),
    "video, SimCLR": ("video", {**CLIPS, "objective": REGULARISED}),
    "video, MoCo": ("video", {**CLIPS, "method": "moco", "objective": NCE}),
    "rl, CURL's contrast": ("rl", {"objective": UNSCALED_NCE}),
}
# The same with batch norms in evaluation mode: what amplifies rounding is left out.
FIXED = ", batch norms fixed"
CASES |= {
    name + FIXED: (domain, {**changes, "learning_rate": 1e-3})
    for name, (domain, changes) in CASES.items()
    if domain in ("vision", "video")
}


class EnoughSteps(Exception):
    """The run has made as many steps as it should."""


class ShortRun(Run):
    """A run that ends after so many steps, and keeps the loss of each."""

    losses: list[float]
    most_steps = STEPS
    double = False
    fixed = False  # batch norms in evaluation mode

    def __enter__(self) -> "ShortRun":
        super().__enter__()
        self.losses = []
        add = self.means.add

        def add_and_keep(parts: dict[str, Tensor]) -> None:
            self.losses.append(float(parts["loss" if "loss" in parts else "contrastive_loss"]))
            if len(self.losses) == self.most_steps:
                raise EnoughSteps
            add(parts)

        self.means.add = add_and_keep  # type: ignore[method-assign]
        return self

    def track(self, **objects: Any) -> int:
        """Widen what the loop has made, in place: the optimisers hold the same parameters."""
        for item in objects.values():
            if isinstance(item, nn.Module):
                if self.double:
                    item.double()
                if self.fixed:
                    fix_norms(item)
        return super().track(**objects)


def fix_norms(module: nn.Module) -> None:
    """Keep a module's batch norms in evaluation mode, whatever mode the module is set to."""
    for norm in module.modules():
        if isinstance(norm, nn.modules.batchnorm._BatchNorm):
            norm.eval()
            norm.train = lambda mode=True, norm=norm: norm  # type: ignore[method-assign]


def config_of(case: str) -> Any:
    domain, changes = CASES[case]
    configs = importlib.import_module(f"{domain}.config")
    config = configs.ProbeConfig() if domain == "rl" else configs.Config()
    return dataclasses.replace(config.reduced(), **changes)


@contextmanager
def in_double() -> Iterator[None]:
    """Whatever enters a module is in double precision."""

    def widened(module: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(
            value.double() if isinstance(value, Tensor) and value.dtype == torch.float32 else value
            for value in inputs
        )

    hook = nn.modules.module.register_module_forward_pre_hook(widened)
    try:
        yield
    finally:
        hook.remove()


def losses_of(case: str, folder: Path, *, double: bool, steps: int) -> list[float]:
    """The losses of a run's first steps, each the mean over processes of their shares."""
    from shared.command.cells import imported

    run = ShortRun(folder, config_of(case), data_root=folder.parent / "data")
    run.most_steps, run.double, run.fixed = steps, double, case.endswith(FIXED)
    with suppress(EnoughSteps), run, in_double() if double else nullcontext():
        imported(CASES[case][0]).measure(run.config, run)
    losses = torch.tensor(run.losses, dtype=torch.float64)
    assert len(losses) == steps, f"{case}: {len(losses)} steps"
    if dist.is_initialized():
        dist.all_reduce(losses)
        losses /= dist.get_world_size()
    return losses.tolist()


def work(
    rank: int,
    cases: Mapping[str, Sequence[int]],
    folder: str,
    single: Sequence[int],
    compared: bool,
) -> None:
    """One of four processes, of which the first, and the first two, also do without the others.

    The first one saves the losses; see :func:`measured` for the other arguments.
    """
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    for world in (world for world in WORLDS if rank < world):
        method = f"file://{folder}/rendezvous-{world}"
        dist.init_process_group("gloo", init_method=method, rank=rank, world_size=world)
        losses = {}
        for case in (case for case, worlds in cases.items() if world in worlds):
            for double in (False, True) if world in single else (True,):
                steps = STEPS
                if compared:
                    steps = min(steps_that_agree(case, double=double), COMPARED)
                if steps:
                    run_folder = Path(folder, f"{world}-{case}-{double}")
                    losses[case, double] = losses_of(case, run_folder, double=double, steps=steps)
        if rank == 0:
            torch.save(losses, Path(folder) / f"{world}.pt")
        dist.barrier()
        dist.destroy_process_group()


def measured(
    cases: Mapping[str, Sequence[int]],
    folder: Path,
    single: Sequence[int] = WORLDS,
    *,
    compared: bool = False,
) -> dict[int, dict[tuple[str, bool], list[float]]]:
    """By number of processes, case and precision (True: double), the losses.

    In single precision on ``single`` processes, in double precision on each number that ``cases``
    gives a case; of the first ``STEPS`` steps, or with ``compared`` of the first ``COMPARED`` of
    those that :func:`steps_that_agree` counts.
    """
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    domains = dict.fromkeys(CASES[case][0] for case in cases)
    modules = dict.fromkeys(module for domain in domains for module in preloaded(domain))
    forked.run(work, (dict(cases), str(folder), single, compared), max(WORLDS), *modules)
    return {world: torch.load(folder / f"{world}.pt") for world in WORLDS}


# How many of the first losses agree in single and in double precision, by domain: batch norms in
# training mode amplify rounding, whatever the number of processes. With clips, whose last feature
# maps are a few numbers, they do so within the first step, and in double precision, too.
AMPLIFIED = {"vision": (1, STEPS), "video": (0, 1)}


def steps_that_agree(case: str, *, double: bool) -> int:
    """How many of the first losses are equal but for rounding."""
    domain = CASES[case][0]
    return STEPS if case.endswith(FIXED) else AMPLIFIED.get(domain, (STEPS, STEPS))[double]


def largest_difference(first: Sequence[float], second: Sequence[float]) -> float:
    """Over all steps, relative to the largest loss."""
    return max(abs(a - b) for a, b in zip(first, second, strict=True)) / max(map(abs, first))


def table(losses: dict[int, dict[tuple[str, bool], list[float]]]) -> str:
    """Powers of ten that the largest differences stay below, as CSV."""
    several = [f"{world} processes" for world in WORLDS[1:]]
    head = ["loop", "loss at step 1", f"loss at step {STEPS}"]
    head += [f"{world}, {dtype}" for dtype in ("float32", "float64") for world in several]
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(head)
    for case in dict.fromkeys(case for case, _ in losses[1]):
        alone = losses[1][case, False]
        cells = [f"{alone[0]:.4f}", f"{alone[-1]:.4f}"]
        for double in (False, True):
            for world in WORLDS[1:]:
                pair = losses[1][case, double], losses[world][case, double]
                exponent = math.log10(max(largest_difference(*pair), 1e-16))
                cells.append(f"{10.0 ** math.ceil(exponent):.0e}")
        writer.writerow([case, *cells])
    return stream.getvalue()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        made = table(measured(dict.fromkeys(sys.argv[1:] or CASES, WORLDS), Path(temporary)))
    print(made)
    if not sys.argv[1:]:
        (ROOT / "docs" / "processes.csv").write_text(made)
