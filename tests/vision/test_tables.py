"""What the gate does not hold of vision's tables: that cells mean something and rows differ."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from shared import LowRankProjection, Objective, margin_nce, term
from shared.experiment.config import canonical_json
from shared.experiment.published import load_published
from shared.experiment.store import part_of
from shared.experiment.tables import TIERS, Table
from shared.pairs import unit_rows
from shared.svm import kernel_values
from vision.augmentation import POLICIES
from vision.config import PRETRAINING, Config
from vision.encoder import make_encoder
from vision.evaluation import PROTOCOLS
from vision.methods import check
from vision.tables import TABLES
from vision.tables_common import NOTES, PUBLISHED, reduced_note
from vision.tables_margins import SHORT
from vision.train import learning_rate, make_optimiser

ROOT = Path(__file__).resolve().parents[2]

ALL = {f"{paper}/{table.name}": table for paper, some in TABLES.items() for table in some}


@pytest.mark.parametrize("table", ALL.values(), ids=ALL)
def test_every_cell_has_a_meaning_and_an_address(table: Table) -> None:
    for tier in TIERS:
        cells = table.cells(tier)
        # Columns may share a run.
        runs = {(each.row, each.run_name, each.seed) for each in cells}
        assert len({each.address for each in cells}) == len(runs)
        for each in cells:
            assert json.loads(canonical_json(each.config))["seed"] == each.seed
            if isinstance(each.config, Config):
                check(each.config)
                assert set(each.config.augmentations) <= set(POLICIES)
                assert each.config.protocol in PROTOCOLS
                if not (each.config.evaluate_on or each.config.dataset).startswith("STL10"):
                    assert each.config.test_size is None  # HCL's 96 pixels are of STL-10 alone


@pytest.mark.parametrize("name", ["lmcl/table-2", "cllr/table-3"])
def test_swav_has_the_optimisation_of_its_program(name: str) -> None:
    """main_swav.py: --base_lr 4.8 for 4096 images, --wd 1e-6, --warmup_epochs 10, then a cosine."""
    for cell in ALL[name].cells("paper", row="SwAV"):
        config = cell.config
        assert isinstance(config, Config)
        assert config.learning_rate == 4.8 * config.batch_size / 4096
        assert (config.optimiser, config.weight_decay) == ("lars", 1e-6)
        assert (config.warmup_epochs, config.schedule) == (10.0, "cosine")


def test_a_transfer_shares_the_encoder_of_its_row() -> None:
    (plain,) = ALL["margins/table-2"].cells("paper", row="MoCo", column="CIFAR10", seeds=(0,))
    (other,) = ALL["margins/table-3"].cells(
        "paper", row="MoCo", column="CIFAR10_to_CIFAR100", seeds=(0,)
    )
    parts = [part_of(each.config, PRETRAINING) for each in (plain, other)]
    assert parts[0] == parts[1]


def test_a_printed_column_that_is_left_out_is_named() -> None:
    tuned, episodes = ALL["mmcl/table-1"], ALL["mmcl/table-1-few-shot"]
    printed = {*tuned.published.columns, *episodes.published.columns}
    whole = load_published(PUBLISHED / "mmcl.toml", "table-1")
    assert set(whole.columns) - printed == {"nyuv2_median_angular_error"}
    assert any("Surface normals on NYUv2" in note for note in tuned.notes)


def test_every_note_is_shown_somewhere() -> None:
    shown = {note for table in ALL.values() for note in table.notes}
    shown |= {row.deviation for table in ALL.values() for row in table.rows}
    everything = "\n".join(shown)
    assert [name for name, note in NOTES.items() if note not in everything] == []


def test_the_tanh_kernel_of_a_batch_has_eigenvalues_below_minus_the_ridge() -> None:
    table = ALL["mmcl/table-6"]
    torch.manual_seed(0)
    for row in table.rows:
        config = table.cells("paper", row=row.label)[0].config
        assert isinstance(config, Config)
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


def test_runs_on_imagenette_have_the_images_that_the_note_counts() -> None:
    """50 test images of ten classes: an accuracy is a multiple of a fifth of a point."""
    seen = set()
    for name in ALL:
        if not name.endswith("-small"):
            continue
        file = ROOT / f"results/short/vision/{name}.records.jsonl"
        if not file.exists():
            continue
        for line in file.read_text(encoding="utf-8").splitlines():
            record = json.loads(line)
            if record["config"]["dataset"] != "imagenette":
                continue
            seen.add(record["environment"]["data"]["imagenette"])
            for metric in ("l2_top1", "knn_top1"):
                hits = record["result"]["metrics"][metric] * 5
                assert hits == pytest.approx(round(hits), abs=1e-6), record["address"]
    assert len(seen) == 1  # all of them the same files


def test_reduced_rows_of_imagenet_keep_what_the_note_says_of_their_budget() -> None:
    """Batch size and weight decay of a row, or of its table, are those at full length."""
    kept = "only batch size and weight decay are kept"
    reduced = {name for name, table in ALL.items() if any(kept in note for note in table.notes)}
    transfers = {"table-1-small", "table-1-few-shot-small", "table-1-linear-small"}
    assert len(reduced) == 9
    for name in reduced - {f"mmcl/{transfer}" for transfer in transfers}:  # they train nothing else
        table, source = ALL[name], ALL[name.removesuffix("-small")]
        assert isinstance(table.config, Config)
        assert isinstance(source.config, Config)
        assert table.config.weight_decay == source.config.weight_decay
        whole = {row.label: row.changes for row in source.rows}
        for row in table.rows:
            if row.label in whole:
                for field in ("weight_decay", "batch_size"):
                    assert row.changes.get(field) == whole[row.label].get(field)


def stays_finite(
    projection: LowRankProjection,
    features: torch.Tensor,
    optimiser: torch.optim.Optimizer,
    rates: Sequence[float],
) -> bool:
    """Train L alone, a step at each rate; whether its penalty is finite at each step."""
    for rate in rates:
        optimiser.param_groups[0]["lr"] = rate
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
        assert isinstance(config, Config)
        if config.objective.projection is None:
            continue
        projection = LowRankProjection(2048, **config.objective.projection.kwargs)
        if projection.norm == "nuclear":  # takes seconds a step
            continue
        assert (config.backbone, config.image_size) == ("resnet50", 224)
        optimiser = make_optimiser(config, projection)
        rates = [learning_rate(config, step, 126_689 // 128) for step in range(10)]
        finite[row.label] = stays_finite(projection, features, optimiser, rates)
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
        assert difference.grad is not None
        values = difference.detach()
        return float(-(difference.grad * values).sum() / values.square().sum())

    assert pull(of_image) > 0
    ratio = -pull(of_view) / pull(of_image)
    assert ratio == pytest.approx(2 * emphasis - 1, rel=0.05)
