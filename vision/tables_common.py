"""Common parts of several papers' tables: constructors, losses, datasets, costs and tiers.

LMCL, CLLR and MMCL evaluate on CIFAR and STL-10 by the protocol of DCL's and HCL's programs
(``HCL`` in vision.config), and the first two on ImageNet-100 by that of CMC's. Notes on rows and
protocols are in published/notes.toml, by name.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from shared import Objective, Term, term
from shared.experiment.methods import trained_with
from shared.experiment.published import load_notes, load_published
from shared.experiment.tables import Column, Row, Table, Tier
from shared.lazy import LazyImport, consistency, debiased_nce, hard_nce, info_nce
from vision.config import CMC, Config, ToyConfig

Changes = Mapping[str, Any]

PUBLISHED = Path(__file__).parent / "published"
NOTES = load_notes(PUBLISHED / "notes.toml")
row = NOTES.row
PAPERS = {
    "lmcl": "Chen et al. 2021 (LMCL)",
    "cllr": "Chen et al. 2022 (CLLR)",
    "mmcl": "Shah et al. 2022 (MMCL)",
    "margins": "Rho et al. 2023 (margins)",
}
REFERENCES = tuple(load_published(PUBLISHED / "references.toml", name) for name in ("dcl", "hcl"))
# MMCL's projected gradient: the suite's, and the solver of the authors' program with its precision.
PGD: Changes = {"solver": "projected_gradient"}
PROGRAM_PGD: Changes = {
    **PGD,
    "steps": 1000,
    "step_size": 1e-3,
    "momentum": "nesterov",
    "stop": 0.01,
    "start": "random",
    "precision": "single",
}
PROBE_METRIC, KNN_METRIC = "linear_top1", "knn_top1"
SEEDS: dict[Tier, tuple[int, ...]] = {"paper": (0,), "smoke": (0,)}


def table(
    paper: str,
    name: str,
    title: str,
    config: Config | ToyConfig,
    rows: Sequence[Row],
    columns: Sequence[Column],
    notes: str,
    *,
    of: str = "",
    printed: str = "",
    short: Changes | None = None,
    **others: Any,
) -> Table:
    """A table in the paper's setting, with its configuration's protocol.

    A row with a printed label measures that published row. notes: names of those below the table;
    the one on reduced runs is added. of: where in the paper; derived from ``name`` if empty.
    printed: key of the published numbers; ``name`` if empty. short: changes of the reduced runs.
    """
    published = others.pop("published", None) or load_published(
        PUBLISHED / f"{paper}.toml", printed or name
    )
    rows = [
        dataclasses.replace(each, published=each.label) if each.label in published.rows else each
        for each in rows
    ]
    usual = {
        "metric": PROBE_METRIC,
        "seeds": SEEDS,
        "varies": "seed (initialisation, augmentations, order of batches)",
    }
    return Table(
        domain="vision",
        paper=paper,
        name=name,
        title=title,
        section=f"{PAPERS[paper]}, {of or name.replace('-', ' ').capitalize()}",
        unit="%",
        protocol=config.protocol,
        config=config,
        rows=tuple(rows),
        columns=tuple(columns),
        published=published,
        short=short or {},
        notes=(*NOTES.lines(notes), *([reduced_note(short)] if short else [])),
        **{**usual, **others},
    )


# As in DCL's and HCL's programs, from whose READMEs MMCL has its numbers on STL-10.
SIMCLR = term(info_nce, temperature=0.5)
DCL = term(debiased_nce, temperature=0.5, tau_plus=0.1)
HARD = term(hard_nce, temperature=0.5, tau_plus=0.1, beta=1.0)
# In CMC's framework, at its temperature. The class prior is that of one class in a hundred.
CMC_NCE: Term = CMC["objective"].loss
CMC_DCL = term(debiased_nce, temperature=0.07, tau_plus=0.01)
CMC_HARD = term(hard_nce, temperature=0.07, tau_plus=0.01, beta=1.0)
# CO2's penalty with the numbers of lightly's program; neither LMCL nor CLLR gives any.
CO2 = term(consistency, weight=1.0, temperature=0.05)

# CMC itself, on one crop: its program train_CMC.py, with softmax, summed over both directions.
CMC_TWO: dict[str, Any] = {
    "method": "cmc",
    "statistics": "none",
    "augmentations": ("ressl_weak", "ressl_weak"),  # crops from 0.2 and flips, as in its program
    "loss_factor": 2.0,
}
# SwAV in CMC's framework: its own crops, head and optimiser, with its program's warm-up and its
# rate (4.8 at 4096) scaled to batches of 128. A table's number of negatives is the length of its
# queue.
SWAV_LOSS = term(
    LazyImport("vision.methods.swav:swapped_prediction"),
    temperature=0.1,
    epsilon=0.05,
    iterations=3,
)
SWAV: dict[str, Any] = {
    "method": "swav",
    "objective": Objective(SWAV_LOSS),
    "head_layers": 2,
    "head_hidden": 2048,
    "augmentations": ("swav", "swav"),
    "small_crops": 6,
    "small_size": 96,
    "prototypes": 3000,
    "prototypes_still": 1.0,
    "queue_from": 15.0,
    "optimiser": "lars",
    "learning_rate": 0.15,
    "weight_decay": 1e-6,
    "warmup_epochs": 10.0,
    "schedule": "cosine",
    "milestones": (),
}
CMC_ROWS = (
    row("CMC", CMC_TWO, "cmc"),
    row("SwAV", SWAV, "swav"),
    row("DCL", trained_with(CMC_DCL), "cmc-dcl"),
    row("HCL", trained_with(CMC_HARD), "cmc-hcl"),
)
IMAGENET_100 = tuple(
    Column(f"n{queue}_{name}", {"queue": queue}, metric=f"linear_{name}", run=f"n{queue}")
    for queue in (1024, 4096)
    for name in ("top1", "top5")
)
CMC_NOTES = "cmc-framework top5"

CIFAR10: dict[str, Any] = {"dataset": "CIFAR10"}
STL10: dict[str, Any] = {"dataset": "STL10", "test_size": 96}
HCL_NOTES = "hcl-open hcl-stl10 hcl-probe"
# The columns of LMCL's and CLLR's Figure 4: five batch sizes on STL-10, then on CIFAR-10.
BY_BATCH_SIZE = tuple(
    Column(f"{name}, {size}", {**changes, "batch_size": size})
    for name, changes in (("STL-10", STL10), ("CIFAR-10", CIFAR10))
    for size in (32, 64, 128, 256, 512)
)

# Reduced runs

# The tables named -cifar10. The learning rate is that of [margins], by the rule in
# vision_budget.py (commit dba64e36).
ON_CIFAR10: dict[str, Any] = {
    "backbone": "resnet8",
    "stem": "strided",
    "epochs": 20,
    "learning_rate": 0.06,
    "warmup_epochs": 1.0,
    "probe_augmentation": False,
}
QUARTER: dict[str, Any] = {**ON_CIFAR10, "epochs": 5, "warmup_epochs": 0.25}
# The same for the protocol of DCL's and HCL's programs, with their Adam.
HCL_QUARTER: dict[str, Any] = {
    name: QUARTER[name] for name in QUARTER if name not in ("learning_rate", "warmup_epochs")
}
# The tables named -small: those of ImageNet, at the learning rate of [margins] and its optimiser.
ON_SMALL: dict[str, Any] = {
    "backbone": "resnet8",
    "stem": "strided",
    "batch_size": 256,
    "optimiser": "sgd",
    "learning_rate": 0.06,
    "schedule": "cosine",
    "milestones": (),
    "probe_augmentation": False,
}
NETWORKS = {
    ("resnet8", "strided"): "ResNet-8 of width 32 with a first convolution of stride 2",
    ("resnet18", "imagenet"): "ResNet-18 with torchvision's own first layers",
}
WORDS = {
    "images": "{} images",
    "epochs": "{} epochs",
    "batch_size": "batches of {}",
    "learning_rate": "a learning rate of {}",
    "warmup_epochs": "{} epochs of warm-up",
    "probe_augmentation": "a probe on features of unaugmented images",
    "optimiser": "the optimiser {}",
    "schedule": "a {} schedule",
}


def reduced_note(short: Changes) -> str:
    """A description of reduced runs, generated from their changes."""
    if unknown := set(short) - {"backbone", "stem", "milestones", *WORDS}:
        raise ValueError(f"reduced runs: no description of {', '.join(sorted(unknown))}")
    network = NETWORKS[short.get("backbone", "resnet18"), short["stem"]]
    rest = [text.format(short[name]) for name, text in WORDS.items() if name in short]
    return f"Reduced runs: {', '.join([network, *rest])}."


# Nothing is trained in these, so that all columns share one run; without a network, the seed has no
# effect.
UNTRAINED: dict[str, Any] = {
    "epochs": 0,
    "warmup_epochs": 0.0,
    "batch_size": 256,
    "learning_rate": 0.0,
}
WITHOUT_NETWORK = tuple(
    row(
        label,
        {**UNTRAINED, "features": features, "beside": None},
        features,
        seeds=(0,),
        baseline=True,
    )
    for label, features in (
        ("raw pixels", "pixels"),
        ("8x8 thumbnail", "thumbnail"),
        ("colour histogram", "histogram"),
    )
)
BASELINES = (
    *WITHOUT_NETWORK,
    row(
        "random network",
        {**UNTRAINED, "calibrated": True},
        "random-network",
        baseline=True,
        untrained=True,
    ),
)
L2, L2_METRIC = "linear-l2-v1", "l2_top1"
ON = "-cifar10"  # ends the names of sweeps on CIFAR-10
SMALL = "-small"


def derived(
    source: Table,
    ending: str,
    where: str,
    columns: Sequence[Column],
    notes: str,
    *,
    short: Changes,
    rows: Sequence[Row] | None = None,
    metric: str = L2_METRIC,
    protocol: str = L2,
    **others: Any,
) -> Table:
    """A reduced table: another's rows and the trivial baselines, at reduced scale.

    Published numbers are kept for columns whose label the paper gives; a row's changes in other
    columns are dropped. With the suite's own metric, the paper's is shown as well.

    ending: of the name. where: the data, in words. notes: names of the notes that follow those on
    budget, metric and baselines. short: the budget. others: fields that override these.
    """
    is_l2 = metric == L2_METRIC
    probe = source.protocol if is_l2 and source.metric != KNN_METRIC else None
    labels = [column.label for column in columns]
    also = (KNN_METRIC, PROBE_METRIC) if probe else (KNN_METRIC,)
    chosen = tuple(
        dataclasses.replace(
            each, in_columns={of: each.in_columns[of] for of in labels if of in each.in_columns}
        )
        for each in (source.rows if rows is None else rows)
    )
    usual = {
        "name": f"{source.name}{ending}",
        "title": f"{source.title}: {where} on one core",
        "metric": metric,
        "also": also if is_l2 else (),
        "protocol": protocol,
        "config": dataclasses.replace(source.config, protocol=protocol, beside=probe),
        "rows": (*chosen, *BASELINES),
        "columns": tuple(columns),
        "seeds": {"short": (0,), "smoke": (0,)},
        "published": source.published.part(labels),
        "references": tuple(reference.part(labels) for reference in source.references),
        "short": short,
        "notes": (
            reduced_note(short),
            *NOTES.lines(f"{'l2-metric' if is_l2 else ''} baselines {notes}"),
        ),
    }
    return dataclasses.replace(source, **{**usual, **others})


def on_cifar10(
    figure: Table, columns: Sequence[Column], notes: str, *, short: Changes, **others: Any
) -> Table:
    """A figure's sweep on CIFAR-10; ``columns`` give the swept values."""
    places = [Column(column.label, {**CIFAR10, **column.changes}) for column in columns]
    return derived(figure, ON, "CIFAR-10", places, notes, short=short, **others)


SMALL_SETS: dict[str, dict[str, Any]] = {
    "CIFAR10": {**CIFAR10, "image_size": 32, "small_size": 16, "epochs": 5, "warmup_epochs": 0.25},
    "imagenette": {
        "dataset": "imagenette",
        "image_size": 64,
        "small_size": 32,
        "epochs": 40,
        "warmup_epochs": 2.0,
    },
}
SMALL_COLUMNS = tuple(Column(name, changes) for name, changes in SMALL_SETS.items())
SMALLER: dict[str, Any] = {
    "queue": 1024,
    "mixed": (64, 64, 8),
    "mixed_from": 1.0,
    "head_hidden": 512,
    "predictor_hidden": 512,
    "prototypes": 100,
    "prototypes_still": 0.25,
    "queue_from": 1.0,
}
SMALL_SIZES = {name: SMALLER[name] for name in ("queue", "head_hidden", "predictor_hidden")}
# Fields that are set by the budget, not by a row.
BUDGET = {*ON_SMALL, "warmup_epochs", "small_size"} - {"batch_size"}


def smaller_rows(source: Table) -> tuple[Row, ...]:
    """The rows of an ImageNet table, with sizes and lengths for reduced runs."""
    return tuple(
        dataclasses.replace(
            each,
            changes={
                name: SMALLER.get(name, value)
                for name, value in each.changes.items()
                if name not in BUDGET
            },
        )
        for each in source.rows
    )


def small(
    source: Table,
    notes: str = "",
    columns: Sequence[Column] = SMALL_COLUMNS,
    where: str = "CIFAR-10 and imagenette",
    **others: Any,
) -> Table:
    """An ImageNet table reduced to small sets; for the arguments see :func:`derived`."""
    config = dataclasses.replace(source.config, **SMALL_SIZES)
    smaller = dataclasses.replace(source, config=config, rows=smaller_rows(source))
    table = derived(smaller, SMALL, where, columns, f"small {notes}", short=ON_SMALL, **others)
    return dataclasses.replace(table, notes=(*table.notes, *source.notes))
