"""The papers' figures on images, drawn from the losses, and from finished runs and their encoders.

Shapes: A angles of positives, G angles of negatives, n images, H features of the backbone.
"""

import inspect
import json
import math
from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.cluster import KMeans
from torch import Tensor, nn

from shared import Pairs, cosine, margin_nce, max_margin, two_views
from shared.errors import program
from shared.experiment.export import read_weights
from shared.experiment.initial import FILE
from shared.report.figures import (
    CannotDraw,
    DeclaredFigure,
    DrawnFigure,
    FigureRuns,
    FinishedRun,
    by_column,
    by_row,
)
from shared.report.pictures import (
    INK,
    RED,
    Curves,
    Histogram,
    Tile,
    curves,
    grid,
    histograms,
    images,
)
from shared.svm import Dual, dual_weights
from vision import toy
from vision.augmentation import POLICIES, augment
from vision.config import ToyConfig
from vision.data import choose, load
from vision.encoder import make_encoder
from vision.evaluation import kmeans_accuracy
from vision.export import load_encoder
from vision.images import Images
from vision.tables import TABLES
from vision.tables_common import KNN_METRIC, L2_METRIC, ON

TEMPERATURE = 0.25  # of the margins paper
NEGATIVES = 510  # of an anchor in a batch of 256 pairs
NEGATIVE_ANGLE = 120  # degrees, for line plots: the positive's softmax is at most 0.44
CURVATURES = (1 / 3, 0.5, 0.7, 1.0, 1.5, 2.5, 5.0)  # of the paper's Figure 5
PICTURES = "CIFAR10"  # whose test images distances and support vectors are shown on
COUNT = 400  # images for the distances
BAND = (0.1, 0.5)  # delta+ and delta- of LMCL
BATCH, ANCHORS, SUPPORTS = 128, 5, 8  # of the figure of support vectors
TOY_ROWS = (
    "Euclidean space",
    "Conventional CT, inner product",
    "LMCT, anchor_sum, inner product",
    "LMCT, mean, inner product",
)
DEGREES = 180 / math.pi
POSITIVE, DERIVATIVE = "angle of the positive (°)", "derivative by the angle"
PULL, PUSH = "pull on the positive", "push on the negatives"


# Gradients of the losses


def gradient_map(
    positive: Tensor, negative: Tensor, *, negatives: int, temperature: float, **numbers: Any
) -> tuple[Tensor, Tensor]:
    """How strongly a loss changes the angles of an anchor's pairs, by its own gradient.

    For angles in radians of the positive (A,) and of each of the ``negatives`` (G,): the pull on
    the positive, the derivative of the loss with respect to its angle, (A, G), and the push on all
    negatives, minus the sum of the derivatives with respect to theirs, (A, G). ``numbers`` are
    further arguments of :func:`shared.margins.margin_nce`.
    """
    one, other = torch.meshgrid(positive.double(), negative.double(), indexing="ij")
    angles = torch.cat([one.reshape(-1, 1), other.reshape(-1, 1).expand(-1, negatives)], dim=1)
    angles = angles.clone().requires_grad_()
    first = torch.zeros(angles.shape, dtype=torch.bool)
    first[:, 0] = True
    # The loss depends on similarities and masks only; of the embeddings it takes the number.
    rows, columns = (torch.zeros(count, 1, dtype=torch.float64) for count in angles.shape)
    pairs = Pairs(rows, columns, first, ~first)
    loss = margin_nce(pairs, angles.cos(), temperature=temperature, **numbers)
    (slope,) = torch.autograd.grad(loss.sum(), angles)
    return slope[:, 0].view_as(one), -slope[:, 1:].sum(1).view_as(one)


def margin_maps(source: FigureRuns) -> DrawnFigure:
    """Pull and push over both angles, for no margin, an angular and a subtractive one."""
    variants: dict[str, dict[str, float]] = {
        "no margin": {},
        "angular, m1 = 0.5": {"angular": 0.5},
        "subtractive, m2 = 0.4": {"subtractive": 0.4},
    }
    angles = torch.linspace(0, math.pi, 61)
    maps = {
        label: gradient_map(angles, angles, negatives=NEGATIVES, temperature=TEMPERATURE, **numbers)
        for label, numbers in variants.items()
    }
    figure, axes = grid(6, 3, (2.6, 2.4))
    titled = [
        (f"{label}\n{what}", pair[row])
        for row, what in enumerate((PULL, PUSH))
        for label, pair in maps.items()
    ]
    for axis, (title, values) in zip(axes, titled, strict=True):
        image = axis.imshow(
            values.T.numpy(),
            origin="lower",
            extent=(0, 180, 0, 180),
            cmap="RdBu_r",
            vmin=-1 / TEMPERATURE,
            vmax=1 / TEMPERATURE,
        )
        axis.set(title=title, xlabel=POSITIVE, ylabel="angle of the negatives (°)")
    figure.colorbar(image, ax=axes, label=DERIVATIVE, shrink=0.7)
    return DrawnFigure(
        figure,
        "Margins: where the gradient goes",
        "After Figure 1 of Rho et al. 2023. Computed here: derivatives of the loss with respect to "
        f"the angle of the positive and (with opposite sign, summed) of {NEGATIVES} negatives at "
        f"one angle, temperature {TEMPERATURE}. Blue: beyond 180 degrees - m1 an angular margin "
        "pushes the positive away.",
    )


def effect_lines(source: FigureRuns) -> DrawnFigure:
    """Pull and push over the positive's angle, for emphasis, ratio and both attenuations."""
    effects: dict[str, dict[str, dict[str, Any]]] = {
        "emphasis": {f"s = {s:g}": {"emphasis": s} for s in (1, 1.25, 2.5, 5)},
        "ratio": {f"m1 = {m:g}": {"angular": m, "ratio": "row"} for m in (0, 0.2, 0.4, 0.8, 1.6)},
        "attenuation, type I": {f"alpha = {a:g}": {"attenuation": a} for a in (0, 0.25, 0.5, 1)},
        "attenuation, type II": {
            f"alpha = {a:g}": {"attenuation": a, "attenuation_scope": "positive"}
            for a in (0, 0.25, 0.5, 1)
        },
    }
    panels = [_gradient_lines(label, variants) for label, variants in effects.items()]
    figure = curves(
        [pair[row] for row in (0, 1) for pair in panels], 4, ordered=True, together=False
    )
    return DrawnFigure(
        figure,
        "Effects of margins, one by one",
        "After Figure 2 of Rho et al. 2023. Computed here: derivatives of the loss with respect to "
        f"the angle of the positive and (with opposite sign, summed) of {NEGATIVES} negatives at "
        f"{NEGATIVE_ANGLE} degrees, temperature {TEMPERATURE}. The ratio multiplies the anchor's "
        "whole row. Emphasis and type II do not change the push: their lines coincide.",
    )


def curvature_lines(source: FigureRuns) -> DrawnFigure:
    """The curvature's weight, and pull and push with it."""
    variants = {f"c = {c:.3g}": {"curvature": c} for c in CURVATURES}
    plain, _ = _gradients_by_angle({})
    weights = {}
    for label, numbers in variants.items():
        pull, _ = _gradients_by_angle(numbers)
        # At both ends the pull is 0 with and without the weight.
        inner = list(plain)[1:-1]
        weights[label] = {angle: [pull[angle][0] / plain[angle][0]] for angle in inner}
    weight = Curves("weight of the positive", POSITIVE, "pull with over without", weights)
    return DrawnFigure(
        curves([weight, *_gradient_lines("curvature", variants)], 3, ordered=True),
        "Curvature: emphasis that falls with the angle",
        "After Figure 8 of Rho et al. 2023, curvature by its Eq. 10. Computed here: derivatives of "
        f"the loss as in figure 2, {NEGATIVES} negatives at {NEGATIVE_ANGLE} degrees, temperature "
        f"{TEMPERATURE}. Curvature does not change the push: its lines coincide.",
    )


def _gradients_by_angle(numbers: Mapping[str, Any]) -> list[dict[float, list[float]]]:
    """Pull and push by the positive's angle in degrees, with all negatives at one angle."""
    angles = torch.linspace(0, math.pi, 181, dtype=torch.float64)
    negative = torch.tensor([NEGATIVE_ANGLE / DEGREES])
    gradients = gradient_map(
        angles, negative, negatives=NEGATIVES, temperature=TEMPERATURE, **numbers
    )
    degrees = (angles * DEGREES).tolist()
    return [dict(zip(degrees, values.tolist(), strict=True)) for values in gradients]


def _gradient_lines(label: str, variants: Mapping[str, Mapping[str, Any]]) -> list[Curves]:
    """A panel of the pull and one of the push, a line for each variant of the loss."""
    lines = {name: _gradients_by_angle(numbers) for name, numbers in variants.items()}
    return [
        Curves(
            f"{label}\n{what}",
            POSITIVE,
            DERIVATIVE,
            {name: pair[k] for name, pair in lines.items()},
        )
        for k, what in enumerate((PULL, PUSH))
    ]


# Sweeps of finished runs


def sweep(
    axis: str,
    value: Callable[[dict[str, Any]], float | None],
    line: Callable[[FinishedRun], str],
    metrics: Sequence[str] = (),
) -> Callable[[FigureRuns], DrawnFigure]:
    """A function that draws a table as curves; baselines and unswept rows are horizontal lines.

    ``value`` reads the swept value from a canonical configuration, None for an unswept row;
    ``line`` names the line of a run. There is one panel for each of the metrics; without any, one
    for each dataset, of the table's metric.
    """

    def draw(source: FigureRuns) -> DrawnFigure:
        table = source.table
        assert table is not None
        lines: dict[str, dict[str, dict[float, list[float]]]] = {}
        levels: dict[str, dict[str, list[float]]] = {}
        for run in source.runs:
            numbers = {run.config.dataset: run.value}
            if metrics:
                numbers = {name: float(run.metrics[name]) for name in metrics}
            position = None if run.row.baseline else value(run.record.config)
            for panel, number in numbers.items():
                lines_of_panel = lines.setdefault(panel, {})
                levels_of_panel = levels.setdefault(panel, {})
                if position is None:
                    name = run.row.label if run.row.baseline else line(run)
                    levels_of_panel.setdefault(name, []).append(number)
                else:
                    lines_of_panel.setdefault(line(run), {}).setdefault(position, []).append(number)
        if not any(lines.values()):
            raise CannotDraw(f"no finished run of {table.address} has a value of {axis}")
        panels = []
        for panel in lines:
            up = f"{panel if metrics else table.metric}, {table.unit}"
            means = {name: float(np.mean(values)) for name, values in levels[panel].items()}
            panels.append(Curves(panel, axis, up, lines[panel], means))
        paper, _, figure = table.section.partition(", ")
        return DrawnFigure(
            curves(panels, len(panels), even=True),
            table.title,
            f"After {figure} of {paper}. Bars: standard deviation over seeds, where there are "
            "several.",
            source.runs,
        )

    return draw


def number(name: str, default: float | None) -> Callable[[dict[str, Any]], float | None]:
    """Reads a number of the loss from a configuration in canonical form."""

    def value(config: dict[str, Any]) -> float | None:
        configured = config["objective"]["loss"]["numbers"].get(name, default)
        return None if configured is None else float(configured)

    return value


def method(run: FinishedRun) -> str:
    """The row's label up to what is swept."""
    return run.row.label.split(",")[0]


def row(run: FinishedRun) -> str:
    """The row's label."""
    return run.row.label


def sweeps(
    name: str,
    table: str,
    axis: str,
    value: Callable[[dict[str, Any]], float | None],
    line: Callable[[FinishedRun], str],
) -> dict[str, DeclaredFigure]:
    """The figure of a table, and that of its reduced version on CIFAR-10 with both metrics."""
    both = (L2_METRIC, KNN_METRIC)
    return {
        name: DeclaredFigure(sweep(axis, value, line), (table,)),
        f"{name}{ON}": DeclaredFigure(sweep(axis, value, line, both), (f"{table}{ON}",)),
    }


# Distances and support vectors, from the encoders of finished runs


def with_encoders(runs: Sequence[FinishedRun]) -> list[FinishedRun]:
    """Those of the runs whose folder keeps an encoder."""
    with_file = [run for run in runs if (run.folder / FILE).is_file()]
    if not with_file:
        raise CannotDraw(f"no finished run of {runs[0].cell.table_address} keeps an encoder")
    return with_file


def features_of(
    network: nn.Module, images: Images, policies: Sequence[str], facts: Mapping[str, Any]
) -> list[Tensor]:
    """Features (n, H) of views of images, one view for each policy.

    network: (n, 3, S, S) -> (n, H), in eval mode. facts: metadata of the encoder's file.
    """
    device = "cuda" if torch.cuda.is_available() else "cpu"
    network = network.to(device)
    features = []
    drawn: dict[str, Any] = {"seed": 0, "epoch": 0, "samples": np.arange(len(images))}
    colours = {name: json.loads(facts[name]) for name in ("mean", "std")}
    size = int(facts["image_size"])
    for view, policy in enumerate(policies):
        pixels = augment(
            images.pixels.to(device), POLICIES[policy], size, view=view, **drawn, **colours
        )
        with torch.no_grad():
            features.append(torch.cat([network(batch) for batch in pixels.split(100)]).cpu())
    return features


def penalty_histograms(source: FigureRuns) -> DrawnFigure:
    """Distances of positive and negative pairs, for untrained, SimCLR, and SimCLR + penalty."""
    plain, penalised = _with_and_without_penalty(with_encoders(source.runs))
    sample = choose(_in_memory(PICTURES, source.data), COUNT)
    config = plain.config
    _, facts = read_weights(plain.folder)
    with torch.random.fork_rng():
        torch.manual_seed(config.seed)
        untrained = make_encoder(config.backbone, config.stem).eval()
    networks = {
        "untrained": untrained,
        "SimCLR": load_encoder(plain.folder),
        "SimCLR + distance\npolarization": load_encoder(penalised.folder),
    }
    panels = []
    for label, network in networks.items():
        distances = (1 - cosine(*features_of(network, sample, config.augmentations, facts))) / 2
        same = torch.eye(len(sample), dtype=torch.bool)
        groups = {
            "two views of an image": distances[same].numpy(),
            "two images": distances[~same].numpy(),
        }
        panels.append(Histogram(label, groups))
    figure = histograms(panels, 3, unit="D = (1 - cos) / 2", limits=(0, 1), band=BAND)
    return DrawnFigure(
        figure,
        f"Distances of pairs of {PICTURES}",
        "After Figure 5 of Chen et al. 2021 (LMCL), which is on sentences. Computed here on the "
        f"features that the runs keep (the backbone's; heads are not kept), {len(sample)} test "
        f"images, views as in training. Shaded: the band from {BAND[0]} to {BAND[1]} that LMCL's "
        "penalty is meant to empty; dashed: the means.",
        [plain, penalised],
    )


def _with_and_without_penalty(runs: Sequence[FinishedRun]) -> tuple[FinishedRun, FinishedRun]:
    """SimCLR and SimCLR with distance polarization, equal in everything else."""
    for plain in runs:
        config = plain.record.config
        objective = config["objective"]
        if (
            config["dataset"] != PICTURES
            or config["method"] != "simclr"
            or objective["loss"]["function"] != "info_nce"
            or objective["penalties"]
            or objective["projection"]
        ):
            continue
        for other in runs:
            penalties = other.record.config["objective"]["penalties"]
            named = [penalty["function"] for penalty in penalties]
            same = {**config, "objective": {**objective, "penalties": penalties}}
            if other.record.config == same and named == ["distance_polarization"]:
                return plain, other
    raise CannotDraw(
        f"no two finished runs of SimCLR on {PICTURES} that differ in distance polarization only; "
        f"run {program()} vision lmcl --table figure-4"
    )


def dimension_histograms(source: FigureRuns) -> DrawnFigure:
    """Distances between images for the finished rows of CLLR's Table 1, in one column."""
    runs_with_encoder = with_encoders(source.runs)
    columns = [
        {label: runs_of_row[0] for label, runs_of_row in by_row(runs).items()}
        for _, runs in by_column(FigureRuns(runs_with_encoder, source.data, source.table))
    ]
    shown = max(columns, key=len)
    if len(shown) < 2:
        raise CannotDraw(
            f"no column of {runs_with_encoder[0].cell.table_address} has encoders of two rows; "
            f"run {program()} vision cllr --table table-1"
        )
    groups = {}
    for label, run in shown.items():
        _, facts = read_weights(run.folder)
        sample = choose(_in_memory(run.config.dataset, source.data), COUNT)
        (features,) = features_of(load_encoder(run.folder), sample, ("plain",), facts)
        groups[label] = torch.pdist(features).numpy() / features.shape[1]
    column = next(iter(shown.values())).column.label
    return DrawnFigure(
        histograms([Histogram(column, groups)], 1, unit="distance / number of features"),
        "Distances of images",
        "After Figure 2 of Chen et al. 2022 (CLLR). Computed here: Euclidean distances by its "
        f"Eq. 1 of {COUNT} test images at the size of the training crops, on the features that the "
        "runs keep (the backbone's; heads and projections are not kept).",
        list(shown.values()),
    )


def support_weights(first: Tensor, second: Tensor, numbers: Mapping[str, Any]) -> Tensor:
    """The dual variables of a batch of views (n, H) by the closed form, (n, 2n).

    Row i has the second view of image i as anchor and its first view as positive; the positive's
    entry is minus the sum of the others. Columns: first views, then second views. ``numbers`` are
    arguments of :func:`shared.losses.max_margin`; others have their defaults.
    """
    pairs = two_views(first, second, anchors="second")
    defaults = {
        name: parameter.default
        for name, parameter in inspect.signature(max_margin).parameters.items()
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY
    }
    among = cosine(pairs.candidate, pairs.candidate)
    return dual_weights(pairs, among, Dual(**{**defaults, **numbers, "solver": "closed_form"}))


def support_vectors(source: FigureRuns) -> DrawnFigure:
    """Anchors, their positives, and the negatives of largest dual weight."""
    candidates = [
        run
        for run in with_encoders(source.runs)
        if run.record.config["objective"]["loss"]["function"] == "max_margin"
    ]
    if not candidates:
        raise CannotDraw(f"no run of MMCL in {source.runs[0].cell.table_address} keeps an encoder")
    # A run trained on these images if there is one, otherwise one trained on others.
    run = min(candidates, key=lambda run: run.config.dataset != PICTURES)
    sample = choose(_in_memory(PICTURES, source.data), BATCH)
    _, facts = read_weights(run.folder)
    first, second = features_of(load_encoder(run.folder), sample, run.config.augmentations, facts)
    weights = support_weights(first, second, run.record.config["objective"]["loss"]["numbers"])
    pictures = sample.pixels.permute(0, 2, 3, 1).numpy()
    rows = []
    for label in sample.labels.unique()[:ANCHORS]:
        anchor = int((sample.labels == label).nonzero()[0])  # the first image of a class
        dual = weights[anchor].clone()
        total = -dual[anchor]
        dual[anchor] = 0
        tiles = [Tile(pictures[anchor], text) for text in ("anchor", f"positive {total:.3g}")]
        for candidate in dual.argsort(descending=True)[:SUPPORTS].tolist():
            index = candidate % len(sample)
            color = RED if sample.labels[index] == label else INK
            tiles.append(Tile(pictures[index], f"{dual[candidate]:.3g}", color))
        rows.append(tiles)
    return DrawnFigure(
        images(rows),
        f"Support vectors of batches of {PICTURES}",
        "After Figure 4 of Shah et al. 2022 (MMCL). Computed here: dual variables of the closed "
        f"form in a batch of {BATCH} test images, negatives of both views, on the features that "
        "the run keeps (the backbone's; heads are not kept); the positive's number is their sum, "
        "red ones are of the anchor's class. Images are shown without augmentation.",
        [run],
    )


def _in_memory(dataset: str, data: Path) -> Images:
    loaded = load(dataset, data, "test")
    if not isinstance(loaded, Images):
        raise CannotDraw(f"{dataset} streams from disk, and this figure needs images in memory")
    return loaded


# Toy data


def toy_maps(source: FigureRuns) -> DrawnFigure:
    """Points of LMCL's toy experiment and their images under the learned maps, by cluster."""
    table = next(table for table in TABLES["lmcl"] if table.name == "table-1")
    figure, axes = grid(len(table.columns) * len(TOY_ROWS), len(TOY_ROWS), (2.4, 2.3))
    cells = [
        table.cells("paper", row=label, column=column.label, seeds=(0,))[0]
        for column in table.columns
        for label in TOY_ROWS
    ]
    for axis, cell in zip(axes, cells, strict=True):
        config = cell.config
        assert isinstance(config, ToyConfig)
        points, labels = toy.sample(config.data, config.seed)
        if config.objective is not None:
            points = points @ toy.learn(config, points).T
        clusters = int(labels.max()) + 1
        means = KMeans(clusters, n_init=toy.RESTARTS, random_state=config.seed)
        axis.scatter(
            points[:, 0], points[:, 1], s=3, c=means.fit_predict(points.numpy()), cmap="viridis"
        )
        accuracy = kmeans_accuracy(
            points.numpy(), labels.numpy(), clusters, config.seed, toy.RESTARTS
        )
        axis.set_title(f"{cell.row}\n{cell.column}, {accuracy:.1f} %", fontsize=8)
        axis.set(xlabel="first coordinate", ylabel="second coordinate")
        axis.set_aspect("equal", adjustable="datalim")  # panels of one size
    return DrawnFigure(
        figure,
        "LMCL's toy experiment",
        "After Figure 3 of Chen et al. 2021 (LMCL). Computed here with seed 0: points and P x, "
        "coloured by K-means cluster, and the clusters' accuracy.",
    )


EMPHASIS = number("emphasis", 1.0)
CURVATURE = number("curvature", None)
BATCH_SIZE = ("batch size", itemgetter("batch_size"), row)

FIGURES: dict[str, dict[str, DeclaredFigure]] = {
    "margins": {
        "figure-1-margins": DeclaredFigure(margin_maps),
        "figure-2-effects": DeclaredFigure(effect_lines),
        **sweeps("figure-3-emphasis", "figure-3", "s", EMPHASIS, method),
        **sweeps(
            "figure-4-batch-size",
            "figure-4",
            "s",
            EMPHASIS,
            lambda run: f"batch {run.config.batch_size}",
        ),
        **sweeps("figure-5-curvature", "figure-5", "c", CURVATURE, method),
        **sweeps(
            "figure-6-emphasis-and-curvature",
            "figure-6",
            "c",
            CURVATURE,
            lambda run: f"s = {EMPHASIS(run.record.config):g}",
        ),
        **sweeps("figure-7-ratio", "figure-7", "m1", number("angular", 0.0), method),
        "figure-8-curvature": DeclaredFigure(curvature_lines),
    },
    "lmcl": {
        "figure-3-toy": DeclaredFigure(toy_maps),
        **sweeps("figure-4-batch-size", "figure-4", *BATCH_SIZE),
        "figure-5-distances": DeclaredFigure(penalty_histograms, (f"figure-4{ON}", "figure-4")),
    },
    "cllr": {
        "figure-2-distances": DeclaredFigure(dimension_histograms, ("table-1",)),
        **sweeps("figure-4-batch-size", "figure-4", *BATCH_SIZE),
    },
    "mmcl": {
        **sweeps("figure-3a-slack", "figure-3a", "C", number("cost", 100.0), lambda run: "MMCL"),
        **sweeps("figure-3c-convergence", "figure-3c", "epochs", itemgetter("epochs"), row),
        "figure-4-support-vectors": DeclaredFigure(
            support_vectors,
            (
                f"figure-3a{ON}",
                f"figure-3c{ON}",
                "table-2-small",
                "figure-3a",
                "figure-3c",
                "table-8",
            ),
        ),
    },
}
