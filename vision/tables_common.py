"""What the tables of several papers share: losses, datasets, costs, tiers and notes.

LMCL, CLLR and MMCL compare on CIFAR and STL-10 by the protocol of DCL's and HCL's programs (``HCL``
in vision.config), and the first two on ImageNet-100 by that of CMC's.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from shared import Objective, consistency, debiased_nce, hard_nce, info_nce, term
from shared.experiment.tables import Column, Published, Row, Table, Tier, load_published
from vision.swav import swapped_prediction

PUBLISHED = Path(__file__).parent / "published"
REFERENCES = (
    load_published(PUBLISHED / "references.toml", "dcl"),
    load_published(PUBLISHED / "references.toml", "hcl"),
)

# As in DCL's and HCL's programs, to which the numbers of their STL-10 tables belong.
SIMCLR = term(info_nce, temperature=0.5)
DCL = term(debiased_nce, temperature=0.5, tau_plus=0.1)
HARD = term(hard_nce, temperature=0.5, tau_plus=0.1, beta=1.0)
# In CMC's framework, at its temperature. The class prior is that of one class in a hundred.
CMC_DCL = term(debiased_nce, temperature=0.07, tau_plus=0.01)
CMC_HARD = term(hard_nce, temperature=0.07, tau_plus=0.01, beta=1.0)

# CO2's penalty with the numbers of lightly's program; neither LMCL nor CLLR prints any.
CO2 = term(consistency, weight=1.0, temperature=0.05)

# CMC itself, on one crop: its program train_CMC.py, with the softmax, both directions added.
CMC_TWO: dict[str, Any] = {
    "method": "cmc",
    "statistics": "none",
    "augmentations": ("ressl_weak", "ressl_weak"),  # crops from 0.2 and flips, as there
    "loss_factor": 2.0,
}
CMC_TEXT = (
    "CMC's own program: lightness and colours (Lab) of one crop through two ResNets of half the "
    "width, each against the other's memory of all images (momentum 0.5), softmax in place of its "
    "default NCE, both losses added. Other than there: the negatives are drawn once for a batch, "
    "not for each image."
)
# SwAV in CMC's framework: its own crops, head and optimiser, the rate of its program (4.8 at 4096)
# in proportion to batches of 128. A table's number of negatives is the length of its queue.
SWAV_LOSS = term(swapped_prediction, temperature=0.1, epsilon=0.05, iterations=3)
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
    "schedule": "cosine",
    "milestones": (),
}
SWAV_TEXT = (
    "Nothing of it is printed. By its program: 2 crops of 224 and 6 of 96 pixels, 3000 prototypes "
    "that stay for an epoch, temperature 0.1, epsilon 0.05, LARS at 4.8 per 4096 images; the "
    "negatives of the column are the length of its queue, used from epoch 15 on."
)

CIFAR10: dict[str, Any] = {"dataset": "CIFAR10"}
STL10: dict[str, Any] = {"dataset": "STL10", "test_size": 96}
BATCHES = (32, 64, 128, 256, 512)

SHORT: dict[str, Any] = {
    "images": 4000,
    "backbone": "resnet18",
    "stem": "small",
    "epochs": 10,
    "batch_size": 128,
    "probe_augmentation": False,
}
SEEDS: dict[Any, tuple[int, ...]] = {"paper": (0,), "short": (0,), "smoke": (0,)}
# Of ImageNet's tables, whose short tier is a table of its own: see small below.
IMAGENET_SEEDS: dict[Any, tuple[int, ...]] = {"paper": (0,), "smoke": (0,)}
VARIES = "seed (initialisation, augmentations, order of batches)"

HCL_NOTES = (
    "Everything the paper leaves open is as in the programs of DCL and HCL: ResNet-50 with a 3x3 "
    "first convolution and no pooling, head 2048-512-128, Adam at 1e-3, temperature 0.5.",
    "STL-10 is pretrained on its training and unlabelled images in crops of 32 pixels and tested "
    "at 96 pixels. Every dataset is normalised by CIFAR-10's statistics, as in these programs.",
    "Linear probe: the backbone's batch norms stay in eval mode, where the programs leave them in "
    "train mode and let their statistics drift; the last epoch counts, never the best.",
)
ONE_SEED = "No deviation is printed and no number of seeds; one seed here, more with --seeds."
CMC_NOTES = (
    "CMC's framework here is its program for MoCo: one network on RGB, a queue of as many "
    "negatives as the column says, 100 epochs in place of 240 with the milestones in proportion.",
    "Top-1 and top-5 are two readings of one probe.",
)


# Images that pretraining sees, and the gigabytes they take.
SIZES = {"CIFAR10": (50_000, 0.2), "CIFAR100": (50_000, 0.2), "STL10": (105_000, 3.0)}


def cost(dataset: str, epochs: int, batch_size: int) -> tuple[float, float]:
    """Minutes on one CPU core and gigabytes of a cell with ResNet-50 at 32 pixels in bfloat16.

    Scaled up from what was measured: 18 views a second, and 15 MB of saved activations for each
    view of a batch.
    """
    images, gigabytes = SIZES[dataset]
    return 2 * epochs * images / 18 / 60, 1.0 + 2 * batch_size * 0.015 + gigabytes


def by_batch_size(epochs: int) -> tuple[Column, ...]:
    """The columns of LMCL's and CLLR's Figure 4: two datasets, five batch sizes."""
    return tuple(
        Column(
            f"{name}, {batch_size}",
            {**changes, "batch_size": batch_size},
            *cost(changes["dataset"], epochs, batch_size),
        )
        for name, changes in (("STL-10", STL10), ("CIFAR-10", CIFAR10))
        for batch_size in BATCHES
    )


# Minutes: 100 epochs of 126,689 images. A view of 224 pixels takes three times the operations of
# one of 32 without pooling; it was not timed.
IMAGENET_100 = tuple(
    Column(
        f"n{queue}_{name}",
        {"queue": queue},
        minutes=70_000.0,
        gigabytes=12.0,
        metric=f"linear_{name}",
        run=f"n{queue}",
    )
    for queue in (1024, 4096)
    for name in ("top1", "top5")
)

NETWORKS = {
    ("resnet8", "strided"): "ResNet-8 of width 32 with a first convolution of stride 2",
    ("resnet18", "small"): "ResNet-18 with pooling after the first convolution",
    ("resnet18", "imagenet"): "ResNet-18 with torchvision's own first layers",
}


def short_note(short: Mapping[str, Any]) -> str:
    """What a short tier changes, in words: they come from the changes themselves.

    Raises:
        ValueError: a change that there are no words for.
    """
    words = {
        "images": "{} images",
        "epochs": "{} epochs",
        "batch_size": "batches of {}",
        "learning_rate": "a learning rate of {}",
        "warmup_epochs": "{} epochs of warm-up",
        "probe_augmentation": "a probe on features of unaugmented images",
        "optimiser": "the optimiser {}",
        "schedule": "a {} schedule",
    }
    if unknown := set(short) - {"backbone", "stem", "milestones", *words}:
        raise ValueError(f"short tier: no words for {', '.join(sorted(unknown))}")
    network = NETWORKS[short.get("backbone", "resnet18"), short["stem"]]
    rest = [text.format(short[name]) for name, text in words.items() if name in short]
    return f"Short tier: {', '.join([network, *rest])}."


SHORT_NOTE = f"{short_note(SHORT)} It shows that the rows run and roughly how they compare."
# Where a column is about its epochs, they stay as they are: fewer images instead.
FEWER: dict[str, Any] = {name: SHORT[name] for name in SHORT if name != "epochs"} | {"images": 512}
FEWER_NOTE = f"{short_note(FEWER)} The epochs are those of the column."

# The tier of the tables named -cifar10. The learning rate, that of [margins], is what the rule in
# benchmarks/vision_budget.py is about.
ON_CIFAR10: dict[str, Any] = {
    "backbone": "resnet8",
    "stem": "strided",
    "epochs": 20,
    "learning_rate": 0.06,
    "warmup_epochs": 1.0,
    "probe_augmentation": False,
}
QUARTER: dict[str, Any] = {**ON_CIFAR10, "epochs": 5, "warmup_epochs": 0.25}
# Its quarter for the tables by the protocol of DCL's and HCL's programs, with their Adam.
HCL_QUARTER: dict[str, Any] = {
    name: QUARTER[name] for name in QUARTER if name not in ("learning_rate", "warmup_epochs")
}
THREE_SEEDS: dict[Tier, tuple[int, ...]] = {"short": (0, 1, 2), "smoke": (0,)}
ON = "-cifar10"  # ends the names of the tier's tables
L2 = "linear-l2-v1"
L2_METRIC, KNN_METRIC, PROBE_METRIC = "l2_top1", "knn_top1", "linear_top1"
READ_OUTS_NOTE = (
    "The metric is that of a logistic regression on standardised features whose L2 penalty a tenth "
    "of the training images decides; beside it stand 200 neighbours, weighted by exp(cos / 0.1). "
    "The paper's probe, where it has one, is shown, too; what it comes to in its steps depends on "
    "the length of the features."
)
FLOORS_NOTE = (
    "Trivial baselines: raw pixels, means over an 8 x 8 grid, a histogram of 4 x 4 x 4 colours, "
    "and the network as it is initialised, its batch norms set to the statistics of the training "
    "images."
)

# Nothing is learned in these, so that one run serves every column; without a network, no seed
# changes them.
UNTRAINED: dict[str, Any] = {
    "epochs": 0,
    "warmup_epochs": 0.0,
    "batch_size": 256,
    "learning_rate": 0.0,
}
FLOORS = (
    *(
        Row(
            label,
            {**UNTRAINED, "features": features, "beside": None},
            deviation=f"Floor, printed by no paper: {what}.",
            seeds=(0,),
            baseline=True,
        )
        for label, features, what in (
            ("raw pixels", "pixels", "the 3072 numbers of an image"),
            ("8x8 thumbnail", "thumbnail", "192 means"),
            ("colour histogram", "histogram", "64 shares"),
        )
    ),
    Row(
        "random network",
        {**UNTRAINED, "calibrated": True},
        deviation="Floor, printed by no paper: the encoder as it is initialised, batch norms with "
        "the statistics of the training images.",
        baseline=True,
    ),
)


def swept(
    figure: Table,
    runs: Mapping[str, Column],
    *,
    budget: Mapping[str, Any],
    notes: Sequence[str],
) -> Table:
    """A plotted sweep in the tier on CIFAR-10, with one seed.

    Args:
        figure: the sweep as the paper has it.
        runs: label and changes of each run; what a row of ``figure`` changes in the column that is
            the key, it changes here.
        budget: changes of the tier.
        notes: what else is to be said.
    """
    columns = tuple(
        Column(run.label, {**CIFAR10, **run.changes}, minutes=5.0, gigabytes=3.0)
        for run in runs.values()
    )
    labels = {of: run.label for of, run in runs.items()}
    rows = tuple(
        dataclasses.replace(
            row,
            in_columns={
                labels[of]: changes for of, changes in row.in_columns.items() if of in labels
            },
        )
        for row in figure.rows
    )
    probe = None if figure.metric == KNN_METRIC else figure.protocol
    return dataclasses.replace(
        figure,
        name=f"{figure.name}{ON}",
        title=f"{figure.title}: CIFAR-10 on one core",
        metric=L2_METRIC,
        also=(KNN_METRIC, PROBE_METRIC) if probe else (KNN_METRIC,),
        protocol=L2,
        config=dataclasses.replace(figure.config, protocol=L2, beside=probe),
        rows=(*rows, *FLOORS),
        columns=columns,
        seeds={"short": (0,), "smoke": (0,)},
        short=budget,
        notes=(short_note(budget), READ_OUTS_NOTE, FLOORS_NOTE, *notes),
    )


# ImageNet's tables on one core, at the learning rate of [margins] and its optimiser.
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
# By data set: its changes, epochs, and epochs of warm-up.
SMALL_SETS: dict[str, tuple[dict[str, Any], int, float]] = {
    "CIFAR10": ({**CIFAR10, "image_size": 32, "small_size": 16}, 5, 0.25),
    "imagenette": ({"dataset": "imagenette", "image_size": 64, "small_size": 32}, 40, 2.0),
}
SMALL = "-small"  # ends the names of the tier's tables
SMALL_NOTE = (
    "CIFAR-10, 5 epochs, and imagenette, ten classes of ImageNet in crops of 64 pixels that stream "
    "from its files, 40 epochs. Queues of 1024 keys, MoCHI's N, s and s' 64, 64 and 8 from the "
    "second epoch on, heads 512 wide, SwAV with 100 prototypes and small crops half as wide as the "
    "large ones; of a row's own budget its batch size stays. Chosen for what "
    "a core does in minutes, before any of these runs."
)
_SMALLER: dict[str, Any] = {
    "queue": 1024,
    "mixed": (64, 64, 8),
    "mixed_from": 1.0,
    "head_hidden": 512,
    "predictor_hidden": 512,
    "prototypes": 100,
    "prototypes_still": 0.25,
    "queue_from": 1.0,
}
_GIVES_WAY = {*ON_SMALL, "warmup_epochs", "small_size"} - {"batch_size"}


def small(table: Table, *, times: Sequence[int] = (1,)) -> Table:
    """A table of ImageNet in the tier of one core: CIFAR-10 and imagenette, one seed.

    Args:
        table: as the paper has it.
        times: the epochs of its columns, as multiples of the tier's.
    """
    columns = tuple(
        Column(
            name if times == (1,) else f"{name}, {each * epochs} epochs",
            {**changes, "epochs": each * epochs, "warmup_epochs": each * warmup},
            minutes=each * (5.0 if name == "CIFAR10" else 12.0),
            gigabytes=3.0,
        )
        for each in times
        for name, (changes, epochs, warmup) in SMALL_SETS.items()
    )
    rows = tuple(
        dataclasses.replace(
            row,
            changes={
                name: _SMALLER.get(name, value)
                for name, value in row.changes.items()
                if name not in _GIVES_WAY
            },
            in_columns={},
        )
        for row in table.rows
    )
    sizes = {name: _SMALLER[name] for name in ("queue", "head_hidden", "predictor_hidden")}
    config = dataclasses.replace(table.config, protocol=L2, beside=table.protocol, **sizes)
    unprinted: dict[str, tuple[None, ...]] = dict.fromkeys(table.published.rows, ())
    return dataclasses.replace(
        table,
        name=f"{table.name}{SMALL}",
        title=f"{table.title}: CIFAR-10 and imagenette on one core",
        metric=L2_METRIC,
        also=(KNN_METRIC, PROBE_METRIC),
        protocol=L2,
        config=config,
        rows=(*rows, *FLOORS),
        columns=columns,
        seeds={"short": (0,), "smoke": (0,)},
        published=dataclasses.replace(table.published, columns=(), rows=unprinted),
        short=ON_SMALL,
        notes=(short_note(ON_SMALL), SMALL_NOTE, READ_OUTS_NOTE, FLOORS_NOTE, *table.notes),
    )


def printed_on(published: Published, column: str) -> Published:
    """A printed table without its other columns."""
    place = published.columns.index(column)
    rows = {label: (row[place],) for label, row in published.rows.items()}
    return dataclasses.replace(published, columns=(column,), rows=rows)
