"""Whether rows of margins' reduced Table 2 gain by another value of one hyperparameter.

The papers' values were tuned at their budgets, the rows have twenty epochs of a small network. The
rule, fixed before the first of these runs: each row below is trained with each value for the
table's budget on 45,000 of CIFAR-10's training images, with a seed that no table has, and scored on
the other 5,000 by both read-outs of ``linear-l2-v1``, on no test image. The table's value stays
unless another is better by more than one point in both; of several such, the one with the largest
sum is taken. A penalty or projection is tried beside SimCLR at the temperature chosen for it, the
row that it is compared with; it gets a row of the table, with eight seeds, where another value than
the table's is chosen.

Where the best value of a loss by the sum of both read-outs is the smallest or the largest tried,
the range goes on at that end: at most two further values of a loss, then it is said that the best
is at an edge. SimCLR (0.07) and MMCL INV (0.0625, then 0.03125) go on for this reason, which was
decided on 2026-11-29, after the first three values of both had been seen. MMCL PGD is tried as MMCL
INV was, and goes on to 0.0625, since 0.125 is better than 0.5.

``python results/tuning.py --data-root DATA --runs FOLDER`` writes what is missing in
``results/tuning.json``; twenty minutes on one core for each value. Interrupted, it continues from
``FOLDER``.
"""

import argparse
import dataclasses
import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from shared import Objective
from shared.experiment.config import canonical, run_key, slug
from shared.experiment.environment import current_environment
from shared.experiment.files import write_atomically
from shared.experiment.run import Run
from shared.projection import extractor_of
from vision.config import Config
from vision.data import load, permutation
from vision.datasets import DATASETS
from vision.evaluation import PROTOCOLS, knn, regularised_probe
from vision.features import embed
from vision.images import Images
from vision.tables_margins import TABLE_2_CIFAR10 as TABLE
from vision.train import pretrain

SEED = 100  # no table has it
IMAGES, HELD_OUT = 45_000, 5_000
MARGIN = 1.0  # points by which both read-outs must be better
CIFAR10 = DATASETS["CIFAR10"]
PART = "CIFAR10-part"  # names the images of these runs
Scores = tuple[float, float]
FILE = Path(__file__).resolve().parents[1] / "results" / "tuning.json"
# By row: the hyperparameter, the table's value, and two others.
VALUES = {
    "SimCLR": ("temperature", 0.25, (0.1, 0.5, 0.07)),
    "MMCL INV, both views": ("gamma", 0.5, (0.125, 2.0, 0.0625, 0.03125)),
    "MMCL PGD, both views": ("gamma", 0.5, (0.125, 2.0, 0.0625)),
    "SimCLR + DP, anchor sum": ("weight", 0.1, (0.01, 1.0)),
    "CLLR, l2,1": ("alpha", 0.001, (0.01, 0.1)),
    "HCL": ("temperature", 0.25, (0.1, 0.5)),
}
TEMPERATURE = 0.1  # the one chosen for SimCLR


def with_value(objective: Objective, name: str, value: float) -> Objective:
    """The objective with another temperature or gamma, weight of the penalty, or alpha."""
    if name == "weight":
        (penalty,) = objective.penalties
        return dataclasses.replace(
            objective, penalties=(dataclasses.replace(penalty, weight=value),)
        )
    if name == "alpha":
        assert objective.projection is not None
        options = {**objective.projection.kwargs, name: value}
        projection = dataclasses.replace(objective.projection, kwargs=options)
        return dataclasses.replace(objective, projection=projection)
    kwargs = {**objective.loss.kwargs, name: value}
    return dataclasses.replace(objective, loss=dataclasses.replace(objective.loss, kwargs=kwargs))


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


def recorded() -> list[dict[str, Any]]:
    """What has been measured."""
    entries: list[dict[str, Any]] = json.loads(FILE.read_text())["tuning"] if FILE.exists() else []
    return entries


def main() -> None:
    """Measure what is missing, and print what is chosen where all values have been tried."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-root", type=Path, required=True, help="folder of the datasets")
    parser.add_argument("--runs", type=Path, required=True, help="folder for unfinished runs")
    parser.add_argument("--row", action="append", choices=VALUES, help="all by default")
    options = parser.parse_args()
    torch.set_num_threads(1)
    train, held_out = split(options.data_root, IMAGES)
    configs = {cell.row: cell.config for cell in TABLE.cells("short") if cell.seed == 0}
    for row in options.row or VALUES:
        name, usual, others = VALUES[row]
        given: Any = configs[row]
        objective: Objective = given.objective
        beside = {}
        if name in ("weight", "alpha"):
            objective = with_value(objective, "temperature", TEMPERATURE)
            beside = {"temperature": TEMPERATURE}
        entries = recorded()
        by_value = {
            each["value"]: (each["l2"], each["knn"]) for each in entries if each["row"] == row
        }
        for value in (usual, *others):
            if value in by_value:
                continue
            tried = with_value(objective, name, value)
            if value == usual and tried != objective:
                raise SystemExit(f"{row}: the table has another {name} than {usual:g}")
            config: Config = dataclasses.replace(
                given, dataset=PART, images=IMAGES, seed=SEED, objective=tried
            )
            place = options.runs / f"{slug(row)}-{run_key('short', canonical(config))}"
            text = f"{row}, {name} {value:g}"
            l2, knn = (round(x, 2) for x in scores(config, train, held_out, place, text))
            by_value[value] = l2, knn
            environment = current_environment(0)
            entries = recorded()  # another row may have been measured meanwhile
            entries.append(
                {
                    "table": TABLE.address,
                    "row": row,
                    "hyperparameter": name,
                    "value": value,
                    **beside,
                    "seed": SEED,
                    "l2": l2,
                    "knn": knn,
                    "commit": environment["commit"],
                    "processor": environment["hardware"]["processor"],
                }
            )
            entries.sort(key=lambda entry: (list(VALUES).index(entry["row"]), entry["value"]))
            lines = ",\n".join(json.dumps(entry, sort_keys=True) for entry in entries)
            write_atomically(FILE, f'{{"tuning": [\n{lines}\n]}}\n')
        print(f"{row}: chosen {name} {chosen(by_value, usual):g}", flush=True)


if __name__ == "__main__":
    main()
