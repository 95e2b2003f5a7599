"""Records outlive the code: what was written down by another name counts, what differs does not."""

import dataclasses
import inspect
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
from toy.train import Config as Toy
from toy.train import measure as train

import shared
from graph.config import Config
from graph.tables import TABLES
from shared import Objective, Projection, distance_polarization, info_nce, term
from shared.command.cells import DOMAINS, tables_of
from shared.experiment.history import (
    History,
    added,
    differences,
    option,
    upgraded_config,
)
from shared.experiment.records import Record, read_record, read_records
from shared.experiment.runs import Conflict, Run, check_config, move_earlier, set_aside
from shared.experiment.tables import Cell, Table, Tier, canonical, place_of, run_key
from shared.report.measuring import Measured, folder_of, measure

ROOT = Path(__file__).resolve().parents[1]
FILES = sorted((ROOT / "results").rglob("*.records.jsonl"))
RECORDS = read_records(ROOT / "results")
GRAPH = TABLES["mmcl"][0]
GRAPH_RECORDS = ROOT / "results/graph/mmcl/table-4.records.jsonl"


def tables() -> Iterator[Table]:
    for domain in DOMAINS:
        for some in tables_of(domain).values():
            yield from some


def counted(measured: Measured) -> set[str]:
    """Addresses of the records whose numbers stand in the table."""
    return {r.address for cells in measured.cells for cell in cells for r in cell.records.values()}


def lines(file: Path) -> list[str]:
    return file.read_text(encoding="utf-8").splitlines()


def test_there_are_records() -> None:
    assert len(RECORDS) == sum(len(lines(file)) for file in FILES) > 0


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(ROOT / "results")))
def test_every_committed_record_counts_and_is_kept_as_it_was_made(file: Path) -> None:
    name = file.name.removesuffix(".records.jsonl")
    folder = file.parent.relative_to(ROOT / "results")
    tier: Tier = "short" if folder.parts[0] == "short" else "paper"
    (table,) = (
        each
        for each in tables()
        if each.name == name and tier in each.tiers and folder_of(each, tier) == folder
    )
    measured = measure(table, tier, RECORDS, {})
    assert counted(measured) == {json.loads(line)["address"] for line in lines(file)}
    assert len(counted(measured)) == len(lines(file))
    written = [json.dumps(dataclasses.asdict(each), sort_keys=True) for each in measured.records]
    assert written == lines(file)


def test_what_was_renamed_is_not_declared_again() -> None:
    for table in tables():
        for tier in table.tiers:
            for cell in table.cells(tier):
                kind = type(cell.config)
                assert upgraded_config(canonical(cell.config), kind) == canonical(cell.config)


def test_numbers_that_a_term_leaves_out_mean_what_they_meant() -> None:
    """Records hold the given numbers alone: a default that changes would change what they say.

    A new number may join with the default that does what was done before; no default may change.
    """
    defaults = {
        name: {
            key: item.default
            for key, item in inspect.signature(getattr(shared, name)).parameters.items()
            if item.kind is item.KEYWORD_ONLY and item.default is not item.empty
        }
        for name in DEFAULTS
    }
    for name, known in DEFAULTS.items():
        assert {key: defaults[name].get(key) for key in known} == known, name


DEFAULTS: dict[str, dict[str, Any]] = {
    "alignment": {"curvature": None, "curvature_form": "equation_10"},
    "debiased_nce": {"floor": "cosine"},
    "hard_nce": {"floor": "cosine", "detach_weights": False},
    "info_nce": {"positive_in_denominator": True},
    "margin_nce": {
        "angular": 0.0,
        "subtractive": 0.0,
        "emphasis": 1.0,
        "curvature": None,
        "curvature_form": "equation_10",
        "ratio": None,
        "attenuation": 0.0,
        "attenuation_scope": "row",
    },
    "max_margin": {
        "gamma": 0.5,
        "cost": 100.0,
        "ridge": 0.1,
        "kernel": "rbf",
        "offset": 0.0,
        "solver": "closed_form",
        "steps": 50,
        "step_size": None,
        "start": "closed_form",
        "unit_diagonal": False,
    },
    "distance_polarization": {
        "lower": 0.1,
        "upper": 0.5,
        "reduction": "anchor_sum",
        "among": "negatives",
    },
    "LowRankProjection": {
        "form": "paper",
        "norm": "l21",
        "alpha": 10.0,
        "rows": None,
        "init": None,
        "unit_features": False,
    },
}


# A field that is added later


@dataclass(frozen=True)
class Wider(Config):
    """Graph's configuration with one more field; older runs did without what it now does."""

    dropout: float = added(0.5, was=0.0)


@dataclass(frozen=True)
class Same(Config):
    """Graph's configuration with one more field that does by default what was always done."""

    folds: tuple[int, ...] = added(default_factory=lambda: (10,), was=(10,))


def widened(kind: type, **changes: Any) -> Table:
    """Graph's Table 4 of the configuration ``kind``, whose rows make further changes."""
    fields = {item.name: getattr(Config(), item.name) for item in dataclasses.fields(Config)}
    rows = tuple(dataclasses.replace(row, changes={**row.changes, **changes}) for row in GRAPH.rows)
    return dataclasses.replace(GRAPH, config=kind(**fields), rows=rows)


@pytest.mark.parametrize(
    ("table", "counts"),
    [
        (widened(Same), True),
        (widened(Wider, dropout=0.0), True),
        (widened(Wider), False),  # today's default is not what the records had
        (widened(Wider, dropout=0.1), False),
        (widened(Same, folds=(10, 5)), False),
        (widened(Same, hidden=33), False),
    ],
)
def test_an_older_record_has_what_fields_were_before_they_were(table: Table, counts: bool) -> None:
    measured = measure(table, "paper", RECORDS, {})
    assert len(counted(measured)) == (len(lines(GRAPH_RECORDS)) if counts else 0)
    # What is written stays what was made.
    assert [r.config for r in measured.records] == [
        json.loads(line)["config"] for line in lines(GRAPH_RECORDS)
    ]


def test_a_field_that_says_nothing_about_older_runs_makes_them_stale() -> None:
    kind = dataclasses.make_dataclass("Config", [("extra", int, 0)], bases=(Config,), frozen=True)
    assert counted(measure(widened(kind), "paper", RECORDS, {})) == set()


def test_an_unknown_key_is_named_in_one_line() -> None:
    record = next(each for each in RECORDS if each.address.startswith("graph/"))
    odd = dataclasses.replace(record, config={**record.config, "wombats": 3})
    measured = measure(GRAPH, "paper", [odd], {})
    assert counted(measured) == set()
    whys = {why for cells in measured.cells for cell in cells for why in cell.missing.values()}
    assert (
        "stale: measured with another configuration, with wombats, of which nothing is known today"
    ) in whys


# Renames, moves, removals


@dataclass(frozen=True)
class Probe:
    epochs: int = 5
    views: int = dataclasses.field(default=2, metadata={"was": 1})  # as the core would say it


OBJECTIVE = Objective(
    term(info_nce, temperature=0.5),
    (term(distance_polarization, lower=0.2),),
    Projection(options={"norm": "l21"}),
)


@dataclass(frozen=True)
class New:
    seed: int = 0
    protocol: str = "v1"
    rate: float = 0.1
    objective: Objective | None = OBJECTIVE
    probe: Probe = Probe()
    probes: tuple[Probe, ...] = (Probe(),)
    history: ClassVar[History] = History(
        renamed={
            "New.lr": "learning_rate",
            "New.learning_rate": "rate",
            "New.probe_epochs": "probe.epochs",
            "Term.factor": "weight",
            "Projection.options.penalty": "options.norm",
        },
        values={"New.protocol": {"v0": "v1"}, "Projection.options.norm": {"2,1": "l21"}},
        removed={"New.fast": False, "Projection.scale": [1.0]},
        functions={"nce": "noise_contrast", "noise_contrast": "info_nce"},
        numbers={"info_nce.tau": "temperature", "distance_polarization.temperature": "never"},
    )


OLD: dict[str, Any] = {
    "seed": 0,
    "protocol": "v1",
    "lr": 0.1,
    "fast": False,
    "objective": {
        "loss": {"function": "noise_contrast", "numbers": {"tau": 0.5}, "factor": 1.0},
        "penalties": [
            {"function": "distance_polarization", "numbers": {"lower": 0.2}, "factor": 1.0}
        ],
        "projection": {"weight": 0.1, "options": {"penalty": "l21"}, "scale": [1.0]},
    },
    "probe_epochs": 5,
    "probes": [{"epochs": 5}],
}
# What ``OLD`` was: one view.
TODAY = New(probe=Probe(views=1), probes=(Probe(views=1),))


def changed(path: str, value: Any) -> dict[str, Any]:
    """``OLD`` with one more or another value."""
    config = json.loads(json.dumps(OLD))
    *above, name = path.split(".")
    place = config
    for part in above:
        place = place[int(part)] if part.isdecimal() else place[part]
    place[name] = value
    return config


def test_renamed_moved_and_removed_fields_and_functions() -> None:
    before = json.dumps(OLD)
    assert upgraded_config(OLD, New) == canonical(TODAY)
    assert json.dumps(OLD) == before
    assert upgraded_config(canonical(TODAY), New) == canonical(TODAY)
    assert differences(OLD, TODAY) == []
    assert differences(changed("objective.loss.function", "nce"), TODAY) == []
    assert differences(changed("protocol", "v0"), TODAY) == []
    assert differences(changed("objective.projection.options.penalty", "2,1"), TODAY) == []
    assert differences({**OLD, "objective": None}, dataclasses.replace(TODAY, objective=None)) == []


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (changed("lr", 0.2), "rate: 0.2 there, 0.1 here"),
        (changed("rate", 0.1), "learning_rate: 0.1 there, no such key here"),  # said twice
        (changed("protocol", "v2"), 'protocol: "v2" there, "v1" here'),
        (changed("fast", True), "fast: true there, no such key here"),
        (changed("wombats", 3), "wombats: 3 there, no such key here"),
        (changed("probe_epochs", 6), "probe.epochs: 6 there, 5 here"),
        (changed("probes.0.views", 2), "probes.0.views: 2 there, 1 here"),
        (changed("probes", []), 'probes: [] there, [{"epochs": 5, "views": 1}] here'),
        (changed("objective.loss.factor", 2.0), "objective.loss.weight: 2.0 there, 1.0 here"),
        (
            changed("objective.loss.function", "hard_nce"),
            'objective.loss.function: "hard_nce" there, "info_nce" here; '
            "objective.loss.numbers.tau: 0.5 there, no such key here; "
            "objective.loss.numbers.temperature: nothing there, 0.5 here",
        ),
        (
            changed("objective.loss.numbers.tau", 0.6),
            "objective.loss.numbers.temperature: 0.6 there, 0.5 here",
        ),
        (
            changed("objective.loss.numbers.beta", 0.6),
            "objective.loss.numbers.beta: 0.6 there, no such key here",
        ),
        (
            changed("objective.penalties.0.numbers.lower", 0.3),
            "objective.penalties.0.numbers.lower: 0.3 there, 0.2 here",
        ),
        (
            changed("objective.projection.scale", [2.0]),
            "objective.projection.scale: [2.0] there, no such key here",
        ),
        (
            changed("objective.loss.function", f"mine.loss@{'ab' * 32}"),
            "objective.loss.function: mine.loss with source abababababab... there, "
            '"info_nce" here; '
            "objective.loss.numbers.tau: 0.5 there, no such key here; "
            "objective.loss.numbers.temperature: nothing there, 0.5 here",
        ),
    ],
)
def test_a_changed_meaning_stays_changed(config: Mapping[str, Any], said: str) -> None:
    assert "; ".join(differences(config, TODAY)) == said


def test_a_value_is_not_renamed_to_what_another_was() -> None:
    with pytest.raises(ValueError, match="values: 'b' is an old and a new value"):
        History(values={"Config.pairs": {"a": "b", "b": "c"}})


def test_records_of_a_row_that_was_renamed_count_and_are_kept_as_they_were_made() -> None:
    table = GRAPH
    rows = tuple(
        dataclasses.replace(row, label="The baseline") if row.label == "GraphCL" else row
        for row in table.rows
    )
    fewer = tuple(
        dataclasses.replace(
            each, rows=tuple("The baseline" if row == "GraphCL" else row for row in each.rows)
        )
        for each in table.fewer
    )
    table = dataclasses.replace(table, rows=rows, claims=(), fewer=fewer)
    measured = measure(table, "paper", RECORDS, {})
    assert len(counted(measured)) == len(lines(GRAPH_RECORDS))
    assert "graph/mmcl/table-4/the-baseline/mutag/seed-0" in counted(measured)
    addresses = {record.address for record in measured.records}
    assert addresses == {json.loads(line)["address"] for line in lines(GRAPH_RECORDS)}


# Runs on a disk


@dataclass(frozen=True)
class Today(Toy):
    """The toy configuration after ``pause`` was renamed from ``wait`` and ``gain`` was added."""

    gain: float = added(2.0, was=1.0)
    history: ClassVar[History] = History(renamed={"Today.wait": "pause"})


def toy_cell(row: str, config: Any) -> Cell:
    return Cell("toy", "toy", "table-1", row, "left", config.seed, "paper", config)


def older(config: Today) -> str:
    """How the configuration was written down before."""
    fields = canonical(config)
    del fields["gain"]
    fields["wait"] = fields.pop("pause")
    return json.dumps(fields)


def finish(folder: Path, config: Any, tier: str = "paper") -> None:
    with Run(folder, config, tier=tier) as run:
        run.finish(train(config, run))


def test_runs_of_an_earlier_version_are_moved_to_where_they_would_be_made(tmp_path: Path) -> None:
    config = Today(gain=1.0, steps=4)
    cell = toy_cell("new", config)
    key = run_key("paper", json.loads(older(config)))
    old = tmp_path / f"toy/works/untrained-seed-7-{key}"
    with Run(old, config, tier="paper") as run:
        train(dataclasses.replace(config, steps=2), run)
    (old / "config.json").write_text(older(config))
    assert move_earlier(tmp_path, "toy", [Toy, Today]) == 1
    assert not old.exists()
    with Run(tmp_path / cell.folder, config) as run:
        assert run.track() == 2  # goes on where it was
        run.finish(train(config, run))
    record = read_record(tmp_path / cell.folder, cell.address)
    assert record is not None
    assert "gain" not in record.config
    assert record.upgraded(Today) == Record(
        cell.address, canonical(config), record.environment, record.result, record.sha256
    )
    with pytest.raises(Conflict, match="seed: 7 there, 8 here; steps: 4 there, 3 here"):
        check_config(tmp_path / cell.folder, Today(gain=1.0, seed=8))


def test_a_run_whose_configuration_got_a_field_is_moved_to_its_new_key(tmp_path: Path) -> None:
    config = Today(gain=1.0)
    before = json.loads(older(config))
    folder = tmp_path / f"toy/works/untrained-seed-7-{run_key('short', before)}"
    finish(folder, config, "short")
    (folder / "config.json").write_text(json.dumps(before))
    assert move_earlier(tmp_path, "toy", [Today]) == 1
    (moved,) = tmp_path.glob("toy/*/*/config.json")
    assert moved.parent.name.endswith(run_key("short", canonical(config)))
    assert moved.parent.parent == folder.parent


def test_what_is_where_it_belongs_or_aside_or_locked_stays(tmp_path: Path) -> None:
    places = [tmp_path / toy_cell("new", Today(seed=seed)).folder for seed in range(2)]
    for seed, folder in enumerate(places):
        finish(folder, Today(seed=seed))
    aside = set_aside(places[1])
    before = json.loads(older(Today(seed=2)))
    held = tmp_path / f"toy/works/untrained-seed-2-{run_key('short', before)}"
    with Run(held, Today(seed=2)):
        (held / "config.json").write_text(json.dumps(before))
        assert move_earlier(tmp_path, "toy", [Today]) == 0
    assert places[0].is_dir()
    assert aside.is_dir()
    assert held.is_dir()
    assert move_earlier(tmp_path, "toy", [Today]) == 0  # it was looked for once
    assert move_earlier(tmp_path, "toy", [Today, Toy]) == 1  # and again for another form
    assert not held.exists()


def test_a_run_has_one_place_in_whatever_order_its_fields_are_read() -> None:
    for table in tables():
        cell = table.cells(table.tiers[0])[0]
        read = json.loads(json.dumps(canonical(cell.config), sort_keys=True))
        assert place_of(cell.domain, read, run_key(cell.tier, read)) == cell.folder


def test_an_option_is_in_the_canonical_form_only_if_used() -> None:
    @dataclasses.dataclass(frozen=True)
    class Optional:
        seed: int = 0
        chunk: int | None = option(None)

    assert canonical(Optional()) == {"seed": 0}
    assert canonical(Optional(chunk=8)) == {"seed": 0, "chunk": 8}
    assert upgraded_config({"seed": 0}, Optional) == {"seed": 0}
    assert upgraded_config({"seed": 0, "chunk": 8}, Optional) == {"seed": 0, "chunk": 8}
