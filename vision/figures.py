"""The papers' figures, drawn anew: gradients of the losses, curves and distances of finished runs.

Shapes: A angles of positives, G angles of negatives, n images, H features of the backbone.

A figure is drawn from what is there: the losses themselves, the records of finished runs, and the
encoders that these runs keep. Where something lacks, the figure is not drawn, and a line says what
it waits for. Each title says what is shown, each caption what was computed and whose figure it
follows; of runs, the tier.
"""

import dataclasses
import inspect
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from sklearn.cluster import KMeans
from torch import Tensor, nn

from shared import Pairs, cosine, margin_nce, max_margin, two_views
from shared.experiment.export import FILE, read_weights
from shared.experiment.history import upgraded_config
from shared.experiment.records import Record, read_record, read_records
from shared.experiment.runs import is_aside
from shared.experiment.tables import Row, Table, Tier, place_of
from shared.report.figures import GRID, STYLE, TIERS, Drawn, Lacking, caption, write_figures
from shared.report.measuring import Measured, measure_finished
from shared.svm import dual_weights
from vision import toy
from vision.augmentation import POLICIES, augment
from vision.config import Config, ToyConfig
from vision.data import Images, choose, load
from vision.encoder import make_encoder
from vision.evaluation import kmeans_accuracy
from vision.export import load_encoder
from vision.tables import TABLES
from vision.tables_common import KNN_METRIC, L2_METRIC, ON

TEMPERATURE = 0.25  # of the margins paper
NEGATIVES = 510  # of an anchor in a batch of 256 pairs
NEGATIVE_ANGLE = 120  # degrees, where lines need one: the positive's softmax is 0.44 at the most
CURVATURES = (1 / 3, 0.5, 0.7, 1.0, 1.5, 2.5, 5.0)  # of the paper's Figure 5
PICTURES = "CIFAR10"  # whose test images distances and support vectors are shown on
COUNT = 400  # of them, for distances
BATCH, ANCHORS, SUPPORTS = 128, 5, 8  # of the figure of support vectors
TOY_ROWS = (
    "Euclidean space",
    "Conventional CT, inner product",
    "LMCT, anchor_sum, inner product",
    "LMCT, mean, inner product",
)
DEGREES = 180 / math.pi
DERIVATIVE = "derivative by the angle"
LOOK: dict[Any, Any] = {
    **STYLE,
    **GRID,
    "axes.titlesize": 8,
    "axes.titleweight": "normal",
    "legend.fontsize": 7,
}


@dataclass(frozen=True)
class Places:
    """Where runs, results and datasets lie."""

    runs: Path
    results: Path
    data: Path


def write(
    paper: str, runs: Path, results: Path, *, data_root: Path, to: Path | None = None
) -> list[Path]:
    """Draw the figures of a paper that can be drawn; print a line for each that cannot.

    Args:
        paper: ``"margins"``, ``"lmcl"``, ``"cllr"`` or ``"mmcl"``.
        runs: folder of the finished runs.
        results: folder of the committed records.
        data_root: where datasets lie.
        to: the files go to ``[short/]vision/<paper>/figures/`` below it, by the tier of the runs
            that they are drawn from, those that need no run to the paper's; None for ``results``.

    Returns:
        The PNG and PDF files written.

    Raises:
        UserError: a paper without figures.
    """
    places = Places(runs, results, data_root)

    def drawn(draw: Callable[[Places], tuple[Tier, Figure]]) -> Drawn:
        return Drawn(TABLES[paper][0], *draw(places))

    return write_figures("vision", paper, FIGURES, drawn, to or results, LOOK)


# Gradients of the losses


def gradient_map(
    positive: Tensor, negative: Tensor, *, negatives: int, temperature: float, **numbers: Any
) -> tuple[Tensor, Tensor]:
    """How strongly a loss moves the angles of an anchor's pairs, by the loss's own gradient.

    Args:
        positive: (A,), angle of the anchor with its positive, radians.
        negative: (G,), angle with each of its negatives.
        negatives: how many of them.
        temperature: of :func:`shared.losses.margin_nce`.
        numbers: further ones of it.

    Returns:
        Pull on the positive, the derivative of the loss by its angle, (A, G); push on all negatives
        together, minus the sum of theirs, (A, G).
    """
    one, other = torch.meshgrid(positive.double(), negative.double(), indexing="ij")
    angles = torch.cat([one.reshape(-1, 1), other.reshape(-1, 1).expand(-1, negatives)], dim=1)
    angles = angles.clone().requires_grad_()
    first = torch.zeros(angles.shape, dtype=torch.bool)
    first[:, 0] = True
    # The loss looks at similarities and masks alone; the embeddings are there for their number.
    rows, columns = (torch.zeros(count, 1, dtype=torch.float64) for count in angles.shape)
    pairs = Pairs(rows, columns, first, ~first)
    loss = margin_nce(pairs, angles.cos(), temperature=temperature, **numbers)
    (slope,) = torch.autograd.grad(loss.sum(), angles)
    return slope[:, 0].view_as(one), -slope[:, 1:].sum(1).view_as(one)


def margin_maps(places: Places) -> tuple[Tier, Figure]:
    """Pull and push over both angles: no margin, an angular one, a subtractive one."""
    variants: dict[str, dict[str, float]] = {
        "no margin": {},
        "angular, m1 = 0.5": {"angular": 0.5},
        "subtractive, m2 = 0.4": {"subtractive": 0.4},
    }
    angles = torch.linspace(0, math.pi, 61)
    figure, axes = _panels(2, 3, "Margins: where the gradient goes", (7.5, 5.2))
    for column, (label, numbers) in enumerate(variants.items()):
        maps = gradient_map(angles, angles, negatives=NEGATIVES, temperature=TEMPERATURE, **numbers)
        for row, (what, values) in enumerate(
            zip(("pull on the positive", "push on the negatives"), maps, strict=True)
        ):
            axis = axes[row, column]
            image = axis.imshow(
                values.T.numpy(),
                origin="lower",
                extent=(0, 180, 0, 180),
                cmap="RdBu_r",
                vmin=-1 / TEMPERATURE,
                vmax=1 / TEMPERATURE,
            )
            axis.set(title=f"{label}\n{what}", xticks=range(0, 181, 45), yticks=range(0, 181, 45))
            axis.grid(False)
            axis.set_xlabel("angle of the positive, degrees")
            axis.set_ylabel("angle of the negatives, degrees")
    figure.colorbar(image, ax=axes, label=DERIVATIVE, shrink=0.7)
    caption(
        figure,
        "After Figure 1 of Rho et al. 2023. Computed here: derivatives of the loss by the angle of "
        f"the positive and (with the other sign, summed) of {NEGATIVES} negatives at one angle, "
        f"temperature {TEMPERATURE}. Blue: past 180 degrees - m1 an angular margin pushes the "
        "positive away.",
    )
    return "paper", figure


def effect_lines(places: Places) -> tuple[Tier, Figure]:
    """Pull and push over the positive's angle for emphasis, ratio and both attenuations."""
    effects: dict[str, dict[str, dict[str, Any]]] = {
        "emphasis": {f"s = {s:g}": {"emphasis": s} for s in (1, 1.25, 2.5, 5)},
        "ratio": {f"m1 = {m:g}": {"angular": m, "ratio": "row"} for m in (0, 0.2, 0.4, 0.8, 1.6)},
        "attenuation, type I": {f"alpha = {a:g}": {"attenuation": a} for a in (0, 0.25, 0.5, 1)},
        "attenuation, type II": {
            f"alpha = {a:g}": {"attenuation": a, "attenuation_scope": "positive"}
            for a in (0, 0.25, 0.5, 1)
        },
    }
    figure, axes = _panels(2, 4, "Effects of margins, one by one", (9.5, 4.8))
    for column, (label, variants) in enumerate(effects.items()):
        _gradient_lines(axes[:, column], variants)
        axes[0, column].set_title(f"{label}\npull on the positive")
        axes[1, column].set_title("push on the negatives")
    for axis in axes[:, 0]:
        axis.set_ylabel(DERIVATIVE)
    caption(
        figure,
        "After Figure 2 of Rho et al. 2023. Computed here: derivatives of the loss by the angle of "
        f"the positive and (with the other sign, summed) of {NEGATIVES} negatives at "
        f"{NEGATIVE_ANGLE} degrees, temperature {TEMPERATURE}. The ratio "
        "multiplies the anchor's whole row. Emphasis and type II leave the push alone: their lines "
        "are one.",
    )
    return "paper", figure


def curvature_lines(places: Places) -> tuple[Tier, Figure]:
    """The curvature's weight, and pull and push with it."""
    figure, axes = _panels(1, 3, "Curvature: emphasis that falls with the angle", (8.5, 3.1))
    variants = {f"c = {c:.3g}": {"curvature": c} for c in CURVATURES}
    angles, plain, _ = _over_positive({})
    for color, (label, numbers) in zip(_shades(len(variants)), variants.items(), strict=True):
        _, pull, _ = _over_positive(numbers)
        # At both ends the pull is 0 with and without the weight.
        inner = slice(1, -1)
        axes[0, 0].plot(angles[inner], pull[inner] / plain[inner], color=color, label=label)
    axes[0, 0].set(title="weight of the positive", xlabel="angle of the positive, degrees")
    axes[0, 0].set_ylabel("pull with curvature over that without")
    axes[0, 0].set_xticks(range(0, 181, 45))
    _gradient_lines(axes[0, 1:], variants)
    axes[0, 1].set(title="pull on the positive", ylabel=DERIVATIVE)
    axes[0, 2].set(title="push on the negatives", ylabel=DERIVATIVE)
    caption(
        figure,
        "After Figure 8 of Rho et al. 2023, curvature by its Eq. 10. Computed here: derivatives of "
        f"the loss as in figure 2, {NEGATIVES} negatives at {NEGATIVE_ANGLE} degrees, temperature "
        f"{TEMPERATURE}. Curvature leaves the push alone: its lines are one.",
    )
    return "paper", figure


def _over_positive(numbers: Mapping[str, Any]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Angles in degrees, pull and push over the positive's angle, the negatives at one."""
    angles = torch.linspace(0, math.pi, 181, dtype=torch.float64)
    negative = torch.tensor([NEGATIVE_ANGLE / DEGREES])
    pull, push = gradient_map(
        angles, negative, negatives=NEGATIVES, temperature=TEMPERATURE, **numbers
    )
    return angles.numpy() * DEGREES, pull[:, 0].numpy(), push[:, 0].numpy()


def _gradient_lines(axes: Sequence[Axes], variants: Mapping[str, Mapping[str, Any]]) -> None:
    for color, (label, numbers) in zip(_shades(len(variants)), variants.items(), strict=True):
        angles, *values = _over_positive(numbers)
        for axis, value in zip(axes, values, strict=True):
            axis.plot(angles, value, color=color, label=label)
            axis.set(xlabel="angle of the positive, degrees", xticks=range(0, 181, 45))
    axes[-1].legend(loc="lower right")


# Curves of finished cells


@dataclass(frozen=True)
class Sweep:
    """A table drawn as curves: what is on the axis, and what tells the lines apart.

    Both are read from the configuration that a record holds; a line whose value on the axis is
    None is drawn across, and so are trivial baselines. With ``metrics`` each gets a panel, else
    each dataset.
    """

    paper: str
    table: str
    source: str
    axis: str
    value: Callable[[dict[str, Any]], float | None]
    line: Callable[[dict[str, Any], str], str]
    metrics: tuple[str, ...] = ()

    def __call__(self, places: Places) -> tuple[Tier, Figure]:
        """The tier of what is drawn, and the figure.

        Raises:
            Lacking: no finished cell.
        """
        table = _table(self.paper, self.table)
        measured = best_tier(table, places)
        panels: dict[str, dict[str, dict[float | None, list[float]]]] = {}
        for record, row, score in scores(measured):
            config = record.config
            found = {config["dataset"]: score}
            if self.metrics:
                found = {name: float(record.result["metrics"][name]) for name in self.metrics}
            line = row.label if row.baseline else self.line(config, row.label)
            value = None if row.baseline else self.value(config)
            for panel, number in found.items():
                points = panels.setdefault(panel, {}).setdefault(line, {})
                points.setdefault(value, []).append(number)
        named = dict.fromkeys(name for lines in panels.values() for name in lines)
        colors = dict(zip(named, _shades(len(named)), strict=True))
        # Equal steps between the values, whatever they are: one of them may be infinite.
        placed = {x for lines in panels.values() for points in lines.values() for x in points}
        ticks = sorted(x for x in placed if x is not None)
        title = f"{table.title} ({measured.tier} tier)"
        figure, axes = _panels(1, len(panels), title, (2.6 + 2.4 * len(panels), 3.3))
        for axis, (panel, lines) in zip(axes[0], panels.items(), strict=True):
            for name, points in lines.items():
                _curve(axis, points, ticks, colors[name])
            metric = panel if self.metrics else table.metric
            axis.set(title=panel, xlabel=self.axis, ylabel=f"{metric}, {table.unit}")
            axis.set_xticks(range(len(ticks)), [f"{tick:.4g}" for tick in ticks], rotation=45)
        handles = [Line2D([], [], color=color, marker="o", label=n) for n, color in colors.items()]
        figure.legend(handles=handles, loc="outside right center")
        seeds: dict[str, set[int]] = {}
        for record, _, _ in scores(measured):
            seeds.setdefault(record.config["dataset"], set()).add(record.config["seed"])
        said = {name: ", ".join(map(str, sorted(some))) for name, some in seeds.items()}
        which = "; ".join(f"{each} in {name}" for name, each in said.items())
        if len(set(said.values())) == 1:
            (which,) = set(said.values())
        caption(
            figure,
            f"After {self.source}. Measured here, protocol {table.protocol}, seeds "
            f"{which}; bars are standard deviations where there are several.",
        )
        return measured.tier, figure


def _table(paper: str, name: str) -> Table:
    return next(table for table in TABLES[paper] if table.name == name)


def best_tier(table: Table, places: Places) -> Measured:
    """The table as measured in the first tier that has a finished cell.

    Raises:
        Lacking: there is none.
    """
    committed = read_records(places.results)
    for tier in TIERS:
        measured = measure_finished(table, tier, places.runs, committed)
        if any(cell.values for cells in measured.cells for cell in cells):
            return measured
    raise Lacking(
        f"no finished cell of {table.address}; run ./reproduce.sh {table.domain} {table.paper} "
        f"--table {table.name}"
    )


def scores(measured: Measured) -> Iterator[tuple[Record, Row, float]]:
    """Record, row, and metric of every record in the table."""
    for cells in measured.cells:
        for cell in cells:
            for seed, record in cell.records.items():
                yield record, cell.row, cell.values[seed]


def _curve(
    axis: Axes,
    points: Mapping[float | None, list[float]],
    ticks: Sequence[float],
    color: Any,
) -> None:
    """One line with its deviations; what has no place on the axis goes across."""
    if None in points:
        axis.axhline(float(np.mean(points[None])), color=color, linestyle=":", linewidth=1)
    placed = sorted((x, scores) for x, scores in points.items() if x is not None)
    axis.errorbar(
        [ticks.index(x) for x, _ in placed],
        [float(np.mean(scores)) for _, scores in placed],
        [float(np.std(scores, ddof=1)) if len(scores) > 1 else 0.0 for _, scores in placed],
        color=color,
        marker="o",
        markersize=3,
        capsize=2,
    )


def _number(name: str, default: float | None) -> Callable[[dict[str, Any]], float | None]:
    """Reads a number of the loss from a record's configuration."""

    def value(config: dict[str, Any]) -> float | None:
        number = config["objective"]["loss"]["numbers"].get(name, default)
        return None if number is None else float(number)

    return value


# Distances and support vectors, by the encoders of finished runs


def finished(runs: Path) -> list[Record]:
    """Finished runs that keep an encoder, those of the paper tier first, then by address."""
    found = []
    for file in sorted((runs / "vision").glob(f"*/*/{FILE}")):
        record = read_record(file.parent, file.parent.relative_to(runs).as_posix())
        if record is not None and not is_aside(file.parent) and record.result["tier"] != "smoke":
            config = upgraded_config(record.config, Config)
            found.append(dataclasses.replace(record, config=config))
    return sorted(found, key=lambda record: bool(record.result["tier"] != "paper"))


def features_of(
    network: nn.Module, images: Images, policies: Sequence[str], facts: Mapping[str, Any]
) -> list[Tensor]:
    """Features (n, H) of views of images, one view for each policy.

    Args:
        network: (n, 3, S, S) -> (n, H), in eval mode.
        images: n images in memory.
        policies: their names.
        facts: metadata of the encoder's file.
    """
    device = "cuda" if torch.cuda.is_available() else "cpu"
    network = network.to(device)
    features = []
    for view, policy in enumerate(policies):
        pixels = augment(
            images.pixels.to(device),
            POLICIES[policy],
            int(facts["image_size"]),
            seed=0,
            epoch=0,
            samples=np.arange(len(images)),
            view=view,
            mean=json.loads(facts["mean"]),
            std=json.loads(facts["std"]),
        )
        with torch.no_grad():
            features.append(torch.cat([network(some) for some in pixels.split(100)]).cpu())
    return features


def pair_distances(first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
    """``D = (1 - cos) / 2`` of views of one image (n,) and of two images (n (n - 1),)."""
    distances = (1 - cosine(first, second)) / 2
    return distances.diagonal(), distances[~torch.eye(len(first), dtype=torch.bool)]


def penalty_histograms(places: Places) -> tuple[Tier, Figure]:
    """Distances of positive and negative pairs: untrained, SimCLR, SimCLR with the penalty."""
    plain, penalised = _with_and_without_penalty(finished(places.runs))
    images = choose(_in_memory(PICTURES, places), COUNT)
    config = plain.config
    _, facts = read_weights(places.runs / plain.address)
    with torch.random.fork_rng():
        torch.manual_seed(config["seed"])
        untrained = make_encoder(config["backbone"], config["stem"]).eval()
    panels = {
        "untrained": untrained,
        "SimCLR": load_encoder(places.runs / plain.address),
        "SimCLR + distance polarization": load_encoder(places.runs / penalised.address),
    }
    title = f"Distances of pairs of {PICTURES} ({plain.result['tier']} tier)"
    figure, axes = _panels(1, len(panels), title, (8.5, 3.0))
    for axis, (label, network) in zip(axes[0], panels.items(), strict=True):
        first, second = features_of(network, images, config["augmentations"], facts)
        for name, distances, color in zip(
            ("two views of an image", "two images"),
            pair_distances(first, second),
            ("#0b7a75", "#c8553d"),
            strict=True,
        ):
            axis.hist(
                distances.numpy(),
                bins=50,
                range=(0, 1),
                density=True,
                alpha=0.6,
                color=color,
                label=name,
            )
        axis.set(title=label, xlabel="D = (1 - cos) / 2", ylabel="density")
        axis.legend()
    caption(
        figure,
        "After Figure 5 of Chen et al. 2021 (LMCL), which is of sentences. Computed here on the "
        f"features that the runs keep (the backbone's; heads are not kept), {len(images)} test "
        f"images, views as in training: {plain.address} and {penalised.address}.",
    )
    return plain.result["tier"], figure


def _with_and_without_penalty(records: Sequence[Record]) -> tuple[Record, Record]:
    """SimCLR and the same with distance polarization, alike in everything else."""
    for plain in records:
        objective = plain.config["objective"]
        if (
            plain.config["dataset"] != PICTURES
            or plain.config["method"] != "simclr"
            or objective["loss"]["function"] != "info_nce"
            or objective["penalties"]
            or objective["projection"]
        ):
            continue
        for other in records:
            theirs = other.config["objective"]
            named = [penalty["function"] for penalty in theirs["penalties"]]
            same = {**plain.config, "objective": {**objective, "penalties": theirs["penalties"]}}
            if other.config == same and named == ["distance_polarization"]:
                return plain, other
    raise Lacking(
        f"no two finished runs of SimCLR on {PICTURES}, one with distance polarization, alike in "
        f"all else; run ./reproduce.sh vision lmcl --table figure-4"
    )


def dimension_histograms(places: Places) -> tuple[Tier, Figure]:
    """Distances between images for the rows of CLLR's Table 1 that are done."""
    table = _table("cllr", "table-1")
    measured = best_tier(table, places)
    kept: dict[str, dict[str, Record]] = {}

    def folder_of(record: Record) -> Path:
        return places.runs / place_of("vision", measured.tier, record.config)

    for cells in measured.cells:
        for cell in cells:
            for record in cell.records.values():
                if (folder_of(record) / FILE).is_file():
                    kept.setdefault(cell.column.label, {}).setdefault(cell.row.label, record)
    column, records = max(kept.items(), key=lambda item: len(item[1]), default=("", {}))
    if len(records) < 2:
        raise Lacking(
            f"no two rows of {table.address} with an encoder in one column under {places.runs}; "
            f"run ./reproduce.sh vision cllr --table table-1"
        )
    title = f"Distances of images, rows of {table.name}, {column} ({measured.tier} tier)"
    figure, axes = _panels(1, 1, title, (7.5, 3.6))
    for color, (label, record) in zip(_shades(len(records)), records.items(), strict=True):
        folder = folder_of(record)
        _, facts = read_weights(folder)
        images = choose(_in_memory(record.config["dataset"], places), COUNT)
        (features,) = features_of(load_encoder(folder), images, ("plain",), facts)
        distances = torch.pdist(features).numpy() / features.shape[1]
        axes[0, 0].hist(distances, bins=60, density=True, histtype="step", color=color, label=label)
    axes[0, 0].set(xlabel="distance / number of features", ylabel="density")
    figure.legend(loc="outside right center")
    caption(
        figure,
        "After Figure 2 of Chen et al. 2022 (CLLR). Computed here: Euclidean distances by its "
        f"Eq. 1 of {COUNT} test images at the side of the training crops, on the features that the "
        "runs keep (the backbone's; heads and projections are not kept).",
    )
    return measured.tier, figure


def support_weights(first: Tensor, second: Tensor, numbers: Mapping[str, Any]) -> Tensor:
    """The closed form's dual variables of a batch, (n, 2n).

    Row i has the second view of image i as anchor and its first view as positive, which holds
    minus the sum of the row. Columns: first views, then second views.

    Args:
        first: (n, H), first views.
        second: (n, H), second views.
        numbers: of :func:`shared.losses.max_margin`; what they leave out has its default.
    """
    pairs = two_views(first, second, anchors="second")
    defaults = {
        name: parameter.default
        for name, parameter in inspect.signature(max_margin).parameters.items()
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY
    }
    among = cosine(pairs.candidate, pairs.candidate)
    return dual_weights(pairs, among, **{**defaults, **numbers, "solver": "closed_form"})


def support_vectors(places: Places) -> tuple[Tier, Figure]:
    """Anchors, their positives, and the negatives of largest dual weight."""
    candidates = [
        record
        for record in finished(places.runs)
        if record.config["objective"]["loss"]["function"] == "max_margin"
    ]
    if not candidates:
        raise Lacking("no finished run of MMCL with an encoder; run ./reproduce.sh vision mmcl")
    # Trained on these pictures if there is such a run, else on others.
    record = min(candidates, key=lambda record: record.config["dataset"] != PICTURES)
    images = choose(_in_memory(PICTURES, places), BATCH)
    folder = places.runs / record.address
    _, facts = read_weights(folder)
    first, second = features_of(load_encoder(folder), images, record.config["augmentations"], facts)
    weights = support_weights(first, second, record.config["objective"]["loss"]["numbers"])
    title = f"Support vectors of batches of {PICTURES} ({record.result['tier']} tier)"
    figure, axes = _panels(ANCHORS, 2 + SUPPORTS, title, (9.0, 5.2))
    pictures = images.pixels.permute(0, 2, 3, 1).numpy()
    for row, anchor in zip(axes, _one_of_each_class(images.labels), strict=True):
        own = weights[anchor].clone()
        total = -own[anchor]
        own[anchor] = 0
        shown = own.argsort(descending=True)[:SUPPORTS]
        row[0].imshow(pictures[anchor])
        row[0].set_title("anchor")
        row[1].imshow(pictures[anchor])
        row[1].set_title(f"positive\n{total:.3g}")
        for axis, candidate in zip(row[2:], shown, strict=True):
            index = int(candidate) % len(images)
            axis.imshow(pictures[index])
            same = images.labels[index] == images.labels[anchor]
            axis.set_title(f"{own[candidate]:.3g}", color="#c8553d" if same else "black")
        for axis in row:
            axis.set_axis_off()
    caption(
        figure,
        "After Figure 4 of Shah et al. 2022 (MMCL). Computed here: dual variables of the closed "
        f"form in a batch of {BATCH} test images, negatives of both views, on the features that "
        "the run keeps (the backbone's; heads are not kept); the positive's number is their sum, "
        "red ones are of the anchor's class. Pictures without their augmentation. Run: "
        f"{record.address}.",
    )
    return record.result["tier"], figure


def _one_of_each_class(labels: Tensor) -> list[int]:
    """The first image of each of the first classes."""
    return [int((labels == label).nonzero()[0]) for label in labels.unique()[:ANCHORS]]


def _in_memory(dataset: str, places: Places) -> Images:
    images = load(dataset, places.data, "test")
    if not isinstance(images, Images):
        raise Lacking(f"{dataset} streams from disk, and this figure needs images in memory")
    return images


# Toy data


def toy_maps(places: Places) -> tuple[Tier, Figure]:
    """Points of LMCL's toy experiment and their images under the learned maps, by cluster."""
    table = _table("lmcl", "table-1")
    columns = [column.label for column in table.columns]
    figure, axes = _panels(len(columns), len(TOY_ROWS), "LMCL's toy experiment", (9.5, 5.0))
    for down, column in enumerate(columns):
        for right, row in enumerate(TOY_ROWS):
            (cell,) = table.cells("paper", row=row, column=column, seeds=(0,))
            config = cell.config
            assert isinstance(config, ToyConfig)
            points, labels = toy.sample(config.data, config.seed)
            if config.objective is not None:
                points = points @ toy.learn(config, points).T
            clusters = int(labels.max()) + 1
            means = KMeans(clusters, n_init=toy.RESTARTS, random_state=config.seed)
            axis = axes[down, right]
            axis.scatter(
                *points.T.numpy(), s=3, c=means.fit_predict(points.numpy()), cmap="viridis"
            )
            accuracy = kmeans_accuracy(
                points.numpy(), labels.numpy(), clusters, config.seed, toy.RESTARTS
            )
            axis.set(title=f"{row}\n{column}, {accuracy:.1f} %")
            axis.set(xlabel="first coordinate", ylabel="second coordinate")
            axis.set_aspect("equal", adjustable="datalim")  # panels of one size
    caption(
        figure,
        "After Figure 3 of Chen et al. 2021 (LMCL). Computed here with seed 0: points and P x, "
        "coloured by the cluster that K-means puts them in, and the accuracy of the clusters.",
    )
    return "paper", figure


# Drawing


def _panels(rows: int, columns: int, title: str, inches: tuple[float, float]) -> tuple[Figure, Any]:
    """A figure with a title, and its (rows, columns) axes."""
    figure = Figure(figsize=inches)
    figure.suptitle(title, fontsize=10, fontweight="bold")
    return figure, figure.subplots(rows, columns, squeeze=False)


def _shades(count: int) -> Any:
    return mpl.colormaps["viridis"](np.linspace(0, 0.85, count))


def _method(config: dict[str, Any], label: str) -> str:
    return label.split(",")[0]


def _row(config: dict[str, Any], label: str) -> str:
    return label


RHO, SHAH = "of Rho et al. 2023 (margins)", "of Shah et al. 2022 (MMCL)"
LMCL, CLLR = "of Chen et al. 2021 (LMCL)", "of Chen et al. 2022 (CLLR)"

Draw = Callable[[Places], tuple[Tier, Figure]]


def _also_on_cifar10(drawers: Mapping[str, Draw]) -> dict[str, Draw]:
    """Figures, and those of the sweeps' tables in the tier on CIFAR-10, with both metrics."""
    sweeps = {name: draw for name, draw in drawers.items() if isinstance(draw, Sweep)}
    small = {
        f"{name}{ON}": dataclasses.replace(
            sweep, table=f"{sweep.table}{ON}", metrics=(L2_METRIC, KNN_METRIC)
        )
        for name, sweep in sweeps.items()
    }
    return {**drawers, **small}


DRAWN: dict[str, dict[str, Draw]] = {
    "margins": {
        "figure-1-margins": margin_maps,
        "figure-2-effects": effect_lines,
        "figure-3-emphasis": Sweep(
            "margins", "figure-3", f"Figure 3 {RHO}", "s", _number("emphasis", 1.0), _method
        ),
        "figure-4-batch-size": Sweep(
            "margins",
            "figure-4",
            f"Figure 4 {RHO}",
            "s",
            _number("emphasis", 1.0),
            lambda config, label: f"batch {config['batch_size']}",
        ),
        "figure-5-curvature": Sweep(
            "margins", "figure-5", f"Figure 5 {RHO}", "c", _number("curvature", None), _method
        ),
        "figure-6-emphasis-and-curvature": Sweep(
            "margins",
            "figure-6",
            f"Figure 6 {RHO}",
            "c",
            _number("curvature", None),
            lambda config, label: f"s = {_number('emphasis', 1.0)(config):g}",
        ),
        "figure-7-ratio": Sweep(
            "margins", "figure-7", f"Figure 7 {RHO}", "m1", _number("angular", 0.0), _method
        ),
        "figure-8-curvature": curvature_lines,
    },
    "lmcl": {
        "figure-3-toy": toy_maps,
        "figure-4-batch-size": Sweep(
            "lmcl", "figure-4", f"Figure 4 {LMCL}", "batch size", itemgetter("batch_size"), _row
        ),
        "figure-5-distances": penalty_histograms,
    },
    "cllr": {
        "figure-2-distances": dimension_histograms,
        "figure-4-batch-size": Sweep(
            "cllr", "figure-4", f"Figure 4 {CLLR}", "batch size", itemgetter("batch_size"), _row
        ),
    },
    "mmcl": {
        "figure-3a-slack": Sweep(
            "mmcl",
            "figure-3a",
            f"Figure 3 a {SHAH}",
            "C",
            _number("cost", 100.0),
            lambda config, label: "MMCL",
        ),
        "figure-3c-convergence": Sweep(
            "mmcl", "figure-3c", f"Figure 3 c {SHAH}", "epochs", itemgetter("epochs"), _row
        ),
        "figure-4-support-vectors": support_vectors,
    },
}

FIGURES = {paper: _also_on_cifar10(drawers) for paper, drawers in DRAWN.items()}
