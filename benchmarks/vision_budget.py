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
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from shared.experiment.data import data_root
from shared.experiment.run import Run
from vision.config import Config
from vision.data import load, permutation
from vision.datasets import DATASETS, Images
from vision.evaluation import PROTOCOLS, knn, regularised_probe
from vision.features import embed
from vision.tables_common import ON_CIFAR10
from vision.train import pretrain

SEED = 100  # no table has it
IMAGES, HELD_OUT, EPOCHS = 20_000, 5_000, 5
RATES, RATE = (0.12, 0.24), 0.06  # others, and the paper's
MARGIN = 1.0  # points by which both read-outs must be better
CIFAR10 = DATASETS["CIFAR10"]
Scores = tuple[float, float]


def scores(train: Images, held_out: Images, rate: float) -> Scores:
    """Accuracy in percent of the regularised probe and of nearest neighbours."""
    short = {**ON_CIFAR10, "images": IMAGES, "epochs": EPOCHS}
    short["warmup_epochs"] = ON_CIFAR10["warmup_epochs"] * EPOCHS / ON_CIFAR10["epochs"]
    config = Config(**{**short, "learning_rate": rate, "seed": SEED})
    torch.manual_seed(SEED)
    start = time.process_time()
    with tempfile.TemporaryDirectory() as folder, Run(Path(folder), config, tier="short") as run:
        networks, _ = pretrain(config, train, run, mean=CIFAR10.mean, std=CIFAR10.std)
    features, others = (
        embed(networks.encoder, images, 32, CIFAR10.mean, CIFAR10.std, precision=config.precision)
        for images in (train, held_out)
    )
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
        f"rate {rate:5g}: l2 {l2:.2f} (penalty {penalty:g}), k-NN {near:.2f}; "
        f"{time.process_time() - start:.0f} CPU-seconds",
        flush=True,
    )
    return l2, near


def chosen(by_rate: dict[float, Scores]) -> float:
    """The paper's rate, or the one that is better by more than the margin in both read-outs."""
    base = by_rate[RATE]
    better = {
        rate: sum(pair)
        for rate, pair in by_rate.items()
        if all(ours > theirs + MARGIN for ours, theirs in zip(pair, base, strict=True))
    }
    return max(better, key=better.__getitem__) if better else RATE


def main() -> None:
    """Try, choose and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-root", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    images = load("CIFAR10", data_root(options.data_root), "train")
    assert isinstance(images, Images)
    order = torch.from_numpy(permutation(len(images), SEED, 0))
    train, held_out, _ = map(
        images.subset, order.split([IMAGES, HELD_OUT, len(order) - IMAGES - HELD_OUT])
    )

    by_rate = {rate: scores(train, held_out, rate) for rate in (RATE, *RATES)}
    print(f"chosen: {chosen(by_rate):g}")


if __name__ == "__main__":
    main()
