"""How the learning rate of vision's tier on CIFAR-10 is chosen: SimCLR alone, no test images.

Run it as ``SUITE_DATA=data python benchmarks/vision_budget.py`` or with ``--data-root data``, after
``./reproduce.sh data vision --dataset CIFAR10``; five minutes on one core.

The rule, fixed before the first of these runs. The tier's SimCLR is trained on 20,000 of CIFAR-10's
training images for five epochs, a tenth of the tier's budget, with a seed that no table has, and
scored on 5,000 other training images by both read-outs of ``linear-l2-v1``. The paper's rate stays
unless another is better by more than one point in both read-outs; of several such, the one with the
largest sum is taken. The temperature is not tried: the paper's s, c, m1 and m2 were tuned at its.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from shared.experiment.data import data_root
from shared.experiment.run import Run
from shared.projection import extractor_of
from vision.config import Config
from vision.data import load, permutation
from vision.datasets import DATASETS
from vision.evaluation import PROTOCOLS, knn, regularised_probe
from vision.features import embed
from vision.images import Images
from vision.tables_common import ON_CIFAR10
from vision.train import pretrain

SEED = 100  # no table has it
IMAGES, HELD_OUT, EPOCHS = 20_000, 5_000, 5
RATES, RATE = (0.12, 0.24), 0.06  # others, and the paper's
MARGIN = 1.0  # points by which both read-outs must be better
CIFAR10 = DATASETS["CIFAR10"]
PART = "CIFAR10-part"  # names the images of these runs
Scores = tuple[float, float]


def split(data: Path, size: int) -> tuple[Images, Images]:
    """Of CIFAR-10's training images ``size`` to train on, and others that are held out."""
    images = load("CIFAR10", data, "train")
    assert isinstance(images, Images)
    order = torch.from_numpy(permutation(len(images), SEED, 0))
    train, held_out = map(images.subset, order[: size + HELD_OUT].split([size, HELD_OUT]))
    return train, held_out


def scores(config: Config, train: Images, held_out: Images, folder: Path, name: str) -> Scores:
    """Accuracy in percent of the regularised probe and of nearest neighbours.

    Args:
        config: of the pretraining.
        train: the images of the pretraining, to which the read-outs are fitted, too.
        held_out: the images that are scored.
        folder: of the run, which continues there after an interruption.
        name: of what is tried, in the line that is printed.
    """
    torch.manual_seed(config.seed)
    start = time.process_time()
    with Run(folder, config, tier="short") as run:
        networks, criterion = pretrain(config, train, run, mean=CIFAR10.mean, std=CIFAR10.std)
    features, others = (
        embed(networks.encoder, images, 32, CIFAR10.mean, CIFAR10.std, precision=config.precision)
        for images in (train, held_out)
    )
    if project := extractor_of(criterion.projection, config.projection_dimensions):
        features, others = project(features), project(others)
    protocol = PROTOCOLS["linear-l2-v1"]
    penalty, predicted = regularised_probe(features, train.labels, others, protocol.penalties)
    l2 = 100 * float((predicted == held_out.labels).double().mean())
    near = knn(
        features,
        train.labels,
        others,
        held_out.labels,
        classes=CIFAR10.classes,
        temperature=protocol.temperature,
    )
    print(
        f"{name}: l2 {l2:.2f} (penalty {penalty:g}), k-NN {near:.2f}; "
        f"{time.process_time() - start:.0f} CPU-seconds",
        flush=True,
    )
    return l2, near


def chosen(by_value: Mapping[float, Scores], usual: float) -> float:
    """The usual value, or the one that is better by more than the margin in both read-outs."""
    base = by_value[usual]
    better = {
        value: sum(pair)
        for value, pair in by_value.items()
        if all(ours > theirs + MARGIN for ours, theirs in zip(pair, base, strict=True))
    }
    return max(better, key=better.__getitem__) if better else usual


def main() -> None:
    """Try, choose and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-root", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    train, held_out = split(data_root(options.data_root), IMAGES)
    short = {**ON_CIFAR10, "dataset": PART, "images": IMAGES, "epochs": EPOCHS, "seed": SEED}
    short["warmup_epochs"] = ON_CIFAR10["warmup_epochs"] * EPOCHS / ON_CIFAR10["epochs"]
    by_rate: dict[float, Scores] = {}
    for rate in (RATE, *RATES):
        config = Config(**{**short, "learning_rate": rate})
        with tempfile.TemporaryDirectory() as folder:
            by_rate[rate] = scores(config, train, held_out, Path(folder), f"rate {rate:5g}")
    print(f"chosen: {chosen(by_rate, RATE):g}")


if __name__ == "__main__":
    main()
