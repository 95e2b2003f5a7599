"""What the gate does not hold of vision's tables: that cells mean something and rows differ."""

import json
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from shared import LowRankProjection, Objective, margin_nce, term
from shared.experiment.config import canonical_json
from shared.experiment.published import load_published
from shared.experiment.store import part_of
from shared.experiment.tables import TIERS, Row, Table
from shared.pairs import unit_rows
from shared.svm import kernel_values
from vision.augmentation import POLICIES
from vision.config import PRETRAINING, Config
from vision.datasets import describe
from vision.encoder import WIDTH, make_encoder
from vision.evaluation import PROTOCOLS
from vision.methods import check
from vision.tables import TABLES
from vision.tables_common import KNN_METRIC, NOTES, PUBLISHED, reduced_note
from vision.tables_margins import SHORT
from vision.train import learning_rate, make_optimiser

ROOT = Path(__file__).resolve().parents[2]

ALL = {f"{paper}/{table.name}": table for paper, some in TABLES.items() for table in some}


@pytest.mark.parametrize("table", ALL.values(), ids=ALL)
def test_every_cell_has_a_meaning_and_an_address(table: Table) -> None:
    for tier in TIERS:
        cells = table.cells(tier)
        sources = {(each.row, each.source, each.seed) for each in cells}  # columns may share a run
        assert len({each.address for each in cells}) == len(sources)
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
    (row,) = (row for row in ALL[name].rows if row.label == "SwAV")
    assert "ten epochs of warm-up" in row.deviation
    assert "LARS leaves batch norms and biases out" in row.deviation


def test_swav_and_the_script_for_small_batches_of_its_program() -> None:
    """swav_200ep_bs256_pretrain.sh: --base_lr 0.6, --warmup_epochs 0, --final_lr 0.0006."""
    (cell,) = ALL["lmcl/table-2"].cells("paper", row="SwAV", column="n1024_top1")
    assert isinstance(cell.config, Config)
    assert 0.6 / 256 == pytest.approx(2 * cell.config.learning_rate / cell.config.batch_size)
    note = " ".join(NOTES["swav"].split())
    assert "twice this rate for an image, no warm-up, and a thousandth of the rate" in note


def test_what_simclr_on_imagenet_lacks_of_its_program_is_named() -> None:
    """google-research/simclr: batch norm without shift after the head, pixels as they are, ..."""
    for row in ("SimCLR", "SimCLR + pos. & curv."):
        cell, *_ = ALL["margins/table-4"].cells("paper", row=row)
        config = cell.config
        assert isinstance(config, Config)
        assert not config.head_output_norm
        assert config.statistics is None
        policy, probe = POLICIES[config.augmentations[0]], PROTOCOLS[config.protocol].probe
        assert (policy.bicubic, policy.reflected) == (False, True)
        assert probe is not None
        assert (probe.batch_size, probe.nesterov, probe.weight_decay) == (1024, False, 0.0)
        (deviation,) = (each.deviation for each in ALL["margins/table-4"].rows if each.label == row)
        for named in ("no batch norm after its last", "bilinear", "mirror", "[0, 1]", "Nesterov"):
            assert named in " ".join(deviation.split()), named


@pytest.mark.parametrize("table", ALL.values(), ids=ALL)
def test_tables_of_runs_in_16_bits_say_so(table: Table) -> None:
    configs = [each.config for tier in table.tiers if tier != "smoke" for each in table.cells(tier)]
    if any(isinstance(each, Config) and each.precision == "bfloat16" for each in configs):
        assert any("bfloat16, in" in " ".join(note.split()) for note in table.notes)


def test_a_transfer_shares_the_encoder_of_its_row_as_the_note_says() -> None:
    (plain,) = ALL["margins/table-2"].cells("paper", row="MoCo", column="CIFAR10", seeds=(0,))
    (other,) = ALL["margins/table-3"].cells(
        "paper", row="MoCo", column="CIFAR10_to_CIFAR100", seeds=(0,)
    )
    parts = [part_of(each.config, PRETRAINING) for each in (plain, other)]
    assert parts[0] == parts[1]
    assert "A cell shares its encoder" in NOTES["transfer"]


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


def test_l_on_unnormalised_features_does_what_the_note_says() -> None:
    note = " ".join(NOTES["unit-features"].split())
    assert "On the unnormalised features of an untrained ResNet-18 L diverges" in note
    rate, momentum, rising = 0.06, 0.9, 195  # of the reduced table: one epoch of CIFAR-10
    for backbone, stem, length in (("resnet18", "cifar", 19), ("resnet8", "strided", 7)):
        torch.manual_seed(0)
        encoder = make_encoder(backbone, stem)
        with torch.no_grad():  # in training mode: features of batch norms that see a batch
            features = encoder(torch.randn(64, 3, 32, 32))
        assert features.norm(dim=1).mean() == pytest.approx(length, abs=0.5)
        for alpha in (0.001, 10.0):
            projection = LowRankProjection(features.shape[1], norm="l21", alpha=alpha)
            optimiser = torch.optim.SGD(projection.parameters(), lr=rate, momentum=momentum)
            rates = [rate * (step + 1) / rising for step in range(rising)]
            stays = stays_finite(projection, features, optimiser, rates)
            assert stays == (backbone == "resnet8")
            if backbone == "resnet8":
                left = torch.linalg.matrix_norm(projection.matrix) / projection.initial_norm
                assert (left < 0.1) == (alpha == 10.0)


@pytest.mark.parametrize("table", ALL.values(), ids=ALL)
def test_no_two_rows_are_the_same_run(table: Table) -> None:
    for column in table.columns:
        cells = table.cells(table.tiers[0], column=column.label)
        configs = {(each.row, canonical_json(each.config)) for each in cells}
        assert len(configs) == len({config for _, config in configs})


@pytest.mark.parametrize("table", ALL.values(), ids=ALL)
def test_readings_of_one_printed_row_say_how_they_differ(table: Table) -> None:
    readings: dict[str, list[Row]] = defaultdict(list)
    for row in table.rows:
        if row.published is not None:
            readings[row.published].append(row)
    for rows in readings.values():
        if len(rows) > 1:
            deviations = {row.deviation for row in rows}
            assert all(deviations)
            assert len(deviations) == len(rows)


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


def test_simclr_rows_of_an_emphasis_that_collapses_say_so() -> None:
    rows = [
        row
        for name in ("figure-3", "figure-4", "figure-3-cifar10", "figure-4-cifar10")
        for row in ALL[f"margins/{name}"].rows
    ]
    noted = [row.label for row in rows if NOTES["collapsing"] in row.deviation]
    assert noted == ["SimCLR, s=5", "s=5", "SimCLR, s=5", "s=5"]


def test_rows_of_lmcl_whose_anchor_sum_polarises_at_once_say_so() -> None:
    for name, note in (("table-3", "polarised-weight"), ("figure-4", "polarised-batch")):
        for row in ALL[f"lmcl/{name}"].rows:
            config = row.in_columns.get("tau_0.4", row.changes)
            penalties = config["objective"].penalties
            strong = any(
                each.kwargs["reduction"] == "anchor_sum"
                and (each.weight >= 0.5 or name == "figure-4")
                for each in penalties
            )
            assert (NOTES[note] in row.deviation) is strong, row.label


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


def test_the_least_energy_that_l_keeps_is_as_the_note_says() -> None:
    """Energy e is kept at s where 0.1 (e (1 - s^2)^2 + alpha s) + decay s^2 / 2 is below 0.1 e."""
    (cell, *_) = ALL["margins/table-2"].cells("paper", row="CLLR, nuclear")
    config = cell.config
    assert isinstance(config, Config)
    assert config.objective.projection is not None
    weight, alpha = config.objective.projection.weight, config.objective.projection.kwargs["alpha"]
    s = torch.linspace(0.01, 1.4, 1000, dtype=torch.float64)
    note = " ".join(NOTES["unit-features"].split())
    for decay, said in ((0.0, "more than 0.9 thousandths"), (config.weight_decay, "than 2.5.")):
        least = ((alpha * s + decay * s**2 / (2 * weight)) / (2 * s**2 - s**4)).min()
        assert f"{1000 * least:.1f}" in said
        assert said in note


def test_notes_give_the_shape_of_l_on_a_small_network() -> None:
    for name, table in ALL.items():
        for cell in table.cells("short") if "short" in table.tiers else ():
            config = cell.config
            if not isinstance(config, Config) or config.objective.projection is None:
                continue
            if WIDTH[str(config.backbone)] != 128:
                continue
            projection = LowRankProjection(128, **config.objective.projection.kwargs)
            shape = tuple(projection.matrix.shape)
            if projection.form == "authors":
                (row,) = (row for row in table.rows if row.label == cell.row)
                assert shape == (256, 128)
                assert "L has 256 rows here, on a ResNet-8's 128" in row.deviation
            else:
                assert shape == (128, 128)
                assert any("is 128 x 128" in note for note in table.notes), name


def test_reduced_runs_are_described_by_what_they_change() -> None:
    note = (
        "Reduced runs: ResNet-18 with torchvision's own first layers, 5000 images, 12 epochs, "
        "batches of 128, a learning rate of 0.03, 1.0 epochs of warm-up, a probe on features of "
        "unaugmented images."
    )
    assert reduced_note(SHORT) == note
    assert note in ALL["margins/table-2"].notes
    with pytest.raises(ValueError, match="reduced runs: no description of precision"):
        reduced_note({**SHORT, "precision": "float32"})


def test_what_is_left_of_a_teachers_start_is_as_the_note_says() -> None:
    note = " ".join(NOTES["small"].split())
    for name, table in ALL.items():
        if not name.endswith("-small"):
            continue
        for cell in table.cells("short"):
            config = cell.config
            if not isinstance(config, Config) or config.method not in ("moco_v2", "moco_v3"):
                continue
            if (config.dataset, config.epochs) not in (("CIFAR10", 5), ("imagenette", 40)):
                continue
            if config.method == "moco_v3":
                assert (config.teacher_momentum, config.teacher_schedule) == (0.99, "cosine")
                assert "MoCo v3 go from 0.99 to 1" in note
                continue
            counts = [describe(config.dataset).train]
            counts += [10 * 300] if config.dataset == "imagenette" else []
            for count in counts:
                steps = config.epochs * (count // config.batch_size)
                left = config.teacher_momentum**steps
                assert config.teacher_schedule == "constant"
                assert f"{left:.0%}" in note, cell
                assert f"{steps:,} " in note, cell


def test_runs_on_imagenette_have_the_images_that_the_note_counts() -> None:
    """50 test images of ten classes: an accuracy is a multiple of a fifth of a point."""
    assert "300 training and 50 test images" in " ".join(NOTES["small"].split())
    assert "300 training and 50 test images" in " ".join(
        (ROOT / "docs/vision.md").read_text(encoding="utf-8").split()
    )
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


def test_claims_of_mmcl_are_compared_with_the_epochs_and_the_read_out_of_their_tables() -> None:
    """On CIFAR-10 as in Table 2 of margins: Table 6 and Figure 3a are k-NN after 200 epochs."""
    at = ALL["margins/table-2-cifar10"]
    read = {claim.id for claim in at.claims if claim.paper == "mmcl"}
    epochs, metric = at.setting("short").differences_of("mmcl")[1:]
    found = set()
    for name, table in ALL.items():
        if not (name.startswith("mmcl/") and "paper" in table.tiers):
            continue
        if read.isdisjoint(claim.id for claim in table.claims):
            continue
        for cell in table.cells("paper"):
            assert isinstance(cell.config, Config)
            found.add((cell.config.epochs, table.metric == KNN_METRIC))
    assert found == {(400, False), (200, True)}
    assert "400 (in Table 6 and Figure 3a 200)" in epochs
    assert "linear classifier (in Table 6 and Figure 3a k-NN)" in metric
