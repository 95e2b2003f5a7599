"""What the gate does not hold of vision's tables: that cells mean something and rows differ."""

import json
from pathlib import Path

import pytest
import torch

from shared import LowRankProjection, Objective, margin_nce, term
from shared.experiment.store import part_of
from shared.experiment.tables import TIERS
from shared.pairs import unit_rows
from shared.svm import kernel_values
from vision.config import PRETRAINING, Config
from vision.encoder import make_encoder
from vision.evaluation import PROTOCOLS
from vision.tables import TABLES
from vision.tables_common import NOTES, reduced_note
from vision.tables_margins import SHORT
from vision.train import learning_rate, make_optimiser

ROOT = Path(__file__).resolve().parents[2]

ALL = {f"{paper}/{table.name}": table for paper, some in TABLES.items() for table in some}


def test_every_cell_has_a_protocol() -> None:
    cells = (cell for table in ALL.values() for tier in TIERS for cell in table.cells(tier))
    configs = [cell.config for cell in cells if isinstance(cell.config, Config)]
    assert {config.protocol for config in configs} <= set(PROTOCOLS)


def test_a_transfer_shares_the_encoder_of_its_row() -> None:
    asked = (("margins/table-2", "CIFAR10"), ("margins/table-3", "CIFAR10_to_CIFAR100"))
    cells = (ALL[name].cells("paper", row="MoCo", column=label)[0] for name, label in asked)
    one, other = (part_of(cell.config, PRETRAINING) for cell in cells)
    assert one == other


def test_the_tanh_kernel_of_a_batch_has_eigenvalues_below_minus_the_ridge() -> None:
    table = ALL["mmcl/table-6"]
    torch.manual_seed(0)
    for row in table.rows:
        config = table.cells("paper", row=row.label)[0].config
        numbers = config.objective.loss.kwargs
        count = config.batch_size * (2 if config.pairs == "both_views" else 1)
        assert count > config.head_output == 128
        points = unit_rows(torch.randn(count, config.head_output)).double()
        kernel = numbers.get("kernel", "rbf")
        gamma, offset = numbers.get("gamma", 0.5), numbers.get("offset", 0.0)
        values = kernel_values(points @ points.T, kernel, gamma, offset)
        centring = torch.eye(count, dtype=torch.float64) - 1 / count
        lowest = torch.linalg.eigvalsh(centring @ values @ centring)[0]
        noted = NOTES["tanh-indefinite"] in row.deviation
        assert bool(lowest < -numbers["ridge"]) is noted is (kernel == "tanh"), row.label


# Reduced runs


def test_other_values_of_a_hyperparameter_have_their_measured_numbers() -> None:
    measured = json.loads((ROOT / "results/tuning.json").read_text(encoding="utf-8"))["tuning"]
    assert len(measured) == 22
    note = " ".join(NOTES["other-values"].split())
    for entry in measured:
        assert f"{entry['value']:g}: {entry['l2']:.2f}" in note, entry
    for tuned in ALL["margins/table-2-cifar10"].tuned:
        tried = {x["value"] for x in measured if x["row"] == tuned.row}
        assert {*tuned.values} <= tried
        assert tuned.value in tuned.values


def test_reduced_runs_are_described_by_what_they_change() -> None:
    note = reduced_note(SHORT)
    assert note in ALL["margins/table-2"].notes
    assert all(part in note for part in ("ResNet-18", "5000 images", "12 epochs", "0.03"))
    with pytest.raises(ValueError, match="precision"):
        reduced_note({**SHORT, "precision": "float32"})


def stays_finite(config: Config, projection: LowRankProjection, features: torch.Tensor) -> bool:
    """Train L alone for ten steps; whether its penalty is finite at each."""
    optimiser = make_optimiser(config, projection)
    for step in range(10):
        optimiser.param_groups[0]["lr"] = learning_rate(config, step, 126_689 // 128)
        penalty = 0.1 * projection(features)[0]
        if not torch.isfinite(penalty):
            return False
        optimiser.zero_grad()
        penalty.backward()
        optimiser.step()
    return True


def test_l_diverges_in_cmcs_framework_as_the_notes_say() -> None:
    table = ALL["cllr/table-3"]
    torch.manual_seed(0)
    encoder = make_encoder("resnet50", "imagenet")
    with torch.no_grad():  # in training mode: features of batch norms that see a batch
        features = encoder(torch.randn(16, 3, 64, 64))
    finite = {}
    for row in table.rows:
        cell, *_ = table.cells("paper", row=row.label)
        config = cell.config
        if config.objective.projection is None:
            continue
        projection = LowRankProjection(2048, **config.objective.projection.kwargs)
        if projection.norm == "nuclear":  # takes seconds a step
            continue
        assert (config.backbone, config.image_size) == ("resnet50", 224)
        finite[row.label] = stays_finite(config, projection, features)
        said = "cannot be trained at full length" in " ".join(row.deviation.split())
        assert said is not finite[row.label], row.label
    assert sorted(finite.values()) == [False, False, False, True]  # True: on SwAV, by LARS


@pytest.mark.parametrize("emphasis", [1.0, 2.5, 5.0])
def test_near_collapse_emphasis_weakens_differences_of_views_as_the_note_says(
    emphasis: float,
) -> None:
    torch.manual_seed(0)
    centre = torch.zeros(64, dtype=torch.float64)
    centre[0] = 1.0
    of_image, of_view = 1e-4 * torch.randn(2, 256, 64, dtype=torch.float64)
    of_image -= of_image.mean(0)
    of_image[:, 0] = of_view[:, 0] = 0.0  # tangential
    of_image.requires_grad_()
    of_view.requires_grad_()
    first, second = unit_rows(centre + of_image + of_view), unit_rows(centre + of_image - of_view)
    criterion = Objective(term(margin_nce, temperature=0.25, emphasis=emphasis)).build(64)
    criterion.of_views(first, second).backward()

    def pull(difference: torch.Tensor) -> float:
        """How strongly descent lengthens a difference, per unit of it."""
        values = difference.detach()
        return float(-(difference.grad * values).sum() / values.square().sum())

    assert pull(of_image) > 0
    ratio = -pull(of_view) / pull(of_image)
    assert ratio == pytest.approx(2 * emphasis - 1, rel=0.05)
