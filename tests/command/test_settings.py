"""Settings as text: typed by the fields and functions that they set, refused in one line."""

import dataclasses
import math

import pytest

import graph.config
import text.config
import video.config
import vision.config
from shared import Objective, Projection, distance_polarization, info_nce, max_margin, term
from shared.command import own
from shared.command.cells import every_table
from shared.command.settings import with_settings
from shared.ranges import require_ranges
from tests.stages.errors import error_of

GRAPH = graph.config.Config()
RICH = dataclasses.replace(
    GRAPH,
    objective=Objective(
        term(info_nce, temperature=0.2),
        (term(distance_polarization, weight=0.1),),
        Projection(0.1, {"norm": "l21"}),
    ),
)


@pytest.mark.parametrize(
    ("config", "setting", "name", "value"),
    [
        (GRAPH, "epochs=3", "epochs", 3),
        (GRAPH, " epochs = 3 ", "epochs", 3),
        (GRAPH, "learning_rate=3", "learning_rate", 3.0),
        (GRAPH, "reshuffle=false", "reshuffle", False),
        (GRAPH, "precision=float32", "precision", "float32"),
        (
            GRAPH,
            "augmentations=node_drop,edge_perturb",
            "augmentations",
            ("node_drop", "edge_perturb"),
        ),
        (text.config.Config(), "steps=none", "steps", None),
        (text.config.Config(), "steps=30", "steps", 30),
        (text.config.Config(), "baseline=tfidf", "baseline", "tfidf"),
        (video.config.Config(), "milestones=2,3", "milestones", (2, 3)),
        (vision.config.Config(), "augmentations=hcl,hcl", "augmentations", ("hcl", "hcl")),
        (vision.config.Config(), "statistics=None", "statistics", None),
        (vision.config.Config(), "statistics=none", "statistics", "none"),
    ],
)
def test_values_are_typed_by_their_fields(
    config: object, setting: str, name: str, value: object
) -> None:
    changed = with_settings(config, [setting])
    assert getattr(changed, name) == value
    assert type(getattr(changed, name)) is type(value)
    assert dataclasses.replace(changed, **{name: getattr(config, name)}) == config


@pytest.mark.parametrize(
    ("config", "name", "kind"),
    [
        (GRAPH, "dataset", "file"),
        (text.config.Config(), "corpus", "folder"),
        (video.config.Config(), "dataset", "folder"),
        (vision.config.Config(), "evaluate_on", "folder"),
    ],
)
def test_paths_to_data_of_ones_own_may_begin_with_the_home_folder(
    config: object, name: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    for given, found in (("mine", "mine"), ("~/mine", "/home/me/mine"), ("/mine", "/mine")):
        setting = f"{name}={kind}:{given}"
        assert getattr(with_settings(config, [setting]), name) == f"{kind}:{found}"


def test_numbers_of_the_objective() -> None:
    settings = (
        "objective.temperature=0.1",
        "objective.positive_in_denominator=false",
        "objective.distance_polarization.weight=2",
        "objective.distance_polarization.lower=0.3",
        "objective.projection.weight=0.5",
        "objective.projection.norm=nuclear",
        "objective.projection.rows=4",
    )
    found = with_settings(RICH, settings).objective
    assert found.loss.kwargs == {"temperature": 0.1, "positive_in_denominator": False}
    assert found.penalties[0].weight == 2.0
    assert found.penalties[0].kwargs == {"lower": 0.3}
    assert found.projection == Projection(0.5, {"norm": "nuclear", "rows": 4})
    margin = dataclasses.replace(GRAPH, objective=Objective(term(max_margin)))
    assert with_settings(margin, ["objective.cost=inf"]).objective.loss.kwargs["cost"] == math.inf


@pytest.mark.parametrize("ends", [("lower=0.8", "upper=0.9"), ("upper=0.9", "lower=0.8")])
def test_both_ends_of_the_band_can_be_set_in_any_order(ends: tuple[str, ...]) -> None:
    found = with_settings(RICH, [f"objective.distance_polarization.{each}" for each in ends])
    assert found.objective.penalties[0].kwargs == {"lower": 0.8, "upper": 0.9}


@pytest.mark.parametrize(
    ("setting", "word"),
    [
        ("epochs", "NAME=VALUE"),
        ("epocs=3", "mean epochs?"),
        ("seed=3", "--seeds"),
        ("epochs=three", "'three'"),
        ("epochs=3.5", "'3.5'"),
        ("learning_rate=fast", "'fast'"),
        ("learning_rate=nan", "'nan'"),
        ("reshuffle=1", "true or false"),
        ("augmentations=('drop','mask')", "commas"),
        ("precision=float46", "mean float64?"),
        ("epochs.more=3", "'more'"),
        ("objective=info_nce", "--with"),
        ("objective.temprature=1", "mean temperature?"),
        ("objective.temperature=warm", "'warm'"),
        ("objective.temperature=-1", "temperature"),
        ("objective.projection.alpha=-1", "alpha"),
    ],
)
def test_unknown_names_and_values_are_refused_in_one_line(setting: str, word: str) -> None:
    assert word in error_of(lambda: with_settings(RICH, [setting]))


@pytest.mark.parametrize(
    ("domain", "paper", "row", "setting", "word"),
    [
        ("vision", "margins", "SimCLR", "queue=-1", "from 0"),
        ("vision", "margins", "SimCLR", "queue=7", "no effect"),
        ("vision", "margins", "SimCLR", "small_augmentation=nosuch", "small_augmentation"),
        ("vision", "margins", "SimCLR", "teacher_momentum=inf", "[0, 1]"),
        ("vision", "margins", "SimCLR", "teacher_momentum=0.5", "method moco_v2"),
        ("vision", "margins", "SimCLR", "image_size=0", "positive"),
        ("vision", "margins", "SimCLR", "test_size=-1", "positive"),
        ("text", "lmcl", "QT", "layers=5", "no effect"),
        ("text", "lmcl", "QT", "hidden=0", "positive"),
        ("rl", "lmcl", "CURL", "probe_updates=3", "needs a probe"),
        ("graph", "mmcl", "GraphCL", "readout=mean", "another network"),
        ("graph", "mmcl", "GraphCL", "hidden=0", "positive"),
        ("graph", "mmcl", "MMCL INV, both views", "objective.temperature=0.1", "'temperature'"),
        ("video", "mmcl", "MoCo-v2", "flow=dis", "no effect"),
        ("video", "mmcl", "MoCo-v2", "size=0", "positive"),
    ],
)
def test_a_field_out_of_range_or_without_effect_is_named_at_the_command_line(
    domain: str, paper: str, row: str, setting: str, word: str
) -> None:
    cells = [
        cell
        for table in every_table(domain)
        if table.paper == paper and row in {each.label for each in table.rows}
        for cell in table.cells(table.tiers[0], row=row)
    ]
    assert word in error_of(lambda: own.apply_settings(cells[:1], [setting]))


def test_a_setting_that_has_an_effect_in_one_row_is_taken() -> None:
    (table,) = (t for t in every_table("vision") if t.address == "vision/margins/table-2-cifar10")
    (cell,) = table.cells("short", row="SimCLR")[:1]
    queued = dataclasses.replace(cell.config, method="moco_v2")
    cells = [cell, dataclasses.replace(cell, config=queued)]
    assert [each.content["queue"] for each in own.apply_settings(cells, ["queue=7"])] == [7, 7]


def test_every_declared_cell_is_in_its_ranges_and_these_are_of_fields() -> None:
    kinds = set()
    for table in every_table():
        for tier in table.tiers:
            for cell in table.cells(tier):
                require_ranges(cell.config)
                kinds.add(type(cell.config))
    for kind in kinds:
        names = {item.name for item in dataclasses.fields(kind)}
        ranged = [name for some in getattr(kind, "ranges", {}).values() for name in some]
        assert set(ranged) <= names
        assert len(set(ranged)) == len(ranged)
        assert {name for use in getattr(kind, "uses", ()) for name in use.fields} <= names


def test_beside_rows_that_train_those_of_no_epoch_stay_so() -> None:
    (table,) = (each for each in every_table("vision") if each.name == "table-2-cifar10")
    for rows, epochs in ((["simclr", "raw-pixels"], [3, 0]), (["raw-pixels"], [3])):
        cells = table.cells("short", row=rows, seeds=[0])
        assert [cell.config.epochs for cell in own.apply_settings(cells, ["epochs=3"])] == epochs
