"""What every domain promises, one test for each promise; experiment has that of exports.

A run that is stopped ends as one in one go, to the bit; a training goes on from an export; one on
data of one's own says so and knows them by their content; what is prepared is checked when it is
used; rows of a table are apart, and their cells mean something.
"""

import csv
import dataclasses
import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from torch_geometric.data import Data

import graph.export
import rl
import text
import video.export
import vision.export
from graph.encoder import make_encoder as encoder_of_graphs
from rl import probe as rl_probe
from rl import train as rl_train
from rl.data import random_frames
from shared import Objective, Projection, distance_polarization, info_nce, term
from shared.errors import UserError
from shared.experiment.config import canonical_json
from shared.experiment.export import CARD
from shared.experiment.initial import InitialWeights
from shared.experiment.run import Run
from shared.experiment.run_folders import Interrupted
from tests.rl.test_own import CONFIG as AGENT_OF_A_PENDULUM
from tests.rl.test_own import pendulum
from tests.rl.test_train import AGENT, PROBE
from tests.video.test_train import SIMCLR as CLIPS
from text.encoder import QuickThought
from text.tokens import Tokens
from text.train import pretrain, save_model, shape_of
from video.data import Videos
from video.encoder import encoder_of as encoder_of_clips
from vision.encoder import make_encoder as encoder_of_images
from vision.images import Images
from vision.methods.swav import swapped_prediction


def low_rank(norm: str) -> Objective:
    loss = term(info_nce, temperature=0.1)
    return Objective(loss, projection=Projection(0.1, {"norm": norm, "alpha": 0.1}))


GRAPHS = graph.Config(dataset="atlas", epochs=3, batch_size=64)
SENTENCES = dataclasses.replace(text.Config().reduced(), steps=6, tasks=("neighbours",))
IMAGES = dataclasses.replace(
    vision.Config(backbone="resnet8").reduced(), epochs=2, learning_rate=0.01
)


def agent_of_a_pendulum(config: Any, run: Run) -> Any:
    return rl.train_agent(config, pendulum, run)


def fast_are(names: Iterable[str], *fast: str) -> list[Any]:
    """The names as parameters, all others marked as slow."""
    slow = pytest.mark.slow
    return [pytest.param(name, marks=() if name in fast else slow) for name in names]


# Stopped and resumed

TRAINING = ("pretraining", "environment steps", "contrastive updates")
# The configuration, what measures it, and the shares of the training after which it is stopped; a
# word is a part of the evaluation.
RUNS: dict[str, tuple[Any, Callable[[Any, Run], Any], Sequence[float | str]]] = {
    "graph": (GRAPHS, graph.measure, (0.3, 0.6)),
    "text, gru": (
        dataclasses.replace(SENTENCES, encoder="gru", diagonal="zero"),
        text.measure,
        (0.1, 0.5),
    ),
    "text, low rank": (
        dataclasses.replace(
            SENTENCES,
            encoder="bag_of_words",
            order="shuffled",
            similarity="cosine",
            objective=low_rank("nuclear"),
        ),
        text.measure,
        (0.1, 0.5),
    ),
    **{
        f"vision, {name}": (dataclasses.replace(IMAGES, **changes), vision.measure, (0.2, 0.5))
        for name, changes in {
            "mochi": {
                "method": "moco_v2",
                "queue": 64,
                "head_layers": 1,
                "mixed": (8, 6, 4),
                "mixed_from": 0.5,
            },
            "moco_v3": {"method": "moco_v3", "symmetric": True, "optimiser": "adam"},
            "cmc": {
                "method": "cmc",
                "statistics": "none",
                "head_layers": 1,
                "queue": 20,
                "loss_factor": 2.0,
            },
            "swav": {
                "method": "swav",
                "objective": Objective(term(swapped_prediction)),
                "prototypes": 20,
                "prototypes_still": 0.5,
                "queue": 60,
                "small_crops": 2,
            },
            "regularised": {
                "objective": Objective(
                    term(info_nce, temperature=0.25),
                    (term(distance_polarization, weight=0.1),),
                    Projection(0.1, {"norm": "nuclear", "alpha": 0.1}),
                )
            },
        }.items()
    },
    # More than the twelve keys that 24 videos are given.
    "video, moco": (
        dataclasses.replace(CLIPS, method="moco", queue=100),
        video.measure,
        (0.3, 0.8),
    ),
    "video, low rank": (
        dataclasses.replace(CLIPS, objective=low_rank("l21"), projection_dimensions=4),
        video.measure,
        (0.6, "linear probe"),
    ),
    "rl, curl": (AGENT, rl.DOMAIN.measure, (0.25, 1.0)),
    "rl, low rank": (
        dataclasses.replace(AGENT, objective=low_rank("l21"), similarity="cosine"),
        rl.DOMAIN.measure,
        (0.75,),
    ),
    "rl, probe": (PROBE, rl.DOMAIN.measure, (0.6, 1.0)),
    "rl, own environment": (AGENT_OF_A_PENDULUM, agent_of_a_pendulum, (0.6, 0.7)),
}


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Logs of agents come after a few decisions, as there are too few for the usual number."""
    monkeypatch.setattr(rl_train, "LOG_EVERY", 4)
    monkeypatch.setattr(rl_probe, "LOG_EVERY", 1)


def outcome(folder: Path, metrics: dict[str, Any]) -> list[Any]:
    """All that a run leaves but for seconds: metrics, log, curve and weights."""
    copy = json.loads(json.dumps(metrics))
    for entry in copy.get("details", {}).get("curve", []):
        assert entry.pop("seconds") >= 0
    lines = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    curve = folder / "curve.csv"
    rows = list(csv.DictReader(curve.read_text().splitlines())) if curve.exists() else []
    for each in (*lines, *rows):
        del each["seconds"]
    weights = {
        f"{file.name} {name}": tensor.numpy().tobytes()
        for file in folder.rglob("*.safetensors")
        for name, tensor in load_file(file).items()
    }
    assert weights
    return [copy, lines, rows, weights]


@pytest.mark.usefixtures("often")
@pytest.mark.parametrize("name", fast_are(RUNS, "vision, mochi", "text, low rank"))
def test_a_stopped_run_ends_as_one_in_one_go(name: str, tmp_path: Path, built_data: Path) -> None:
    if name.startswith("video") and torch.cuda.is_available():
        pytest.skip("promised of a CPU alone")
    config, measure, moments = RUNS[name]
    with Run(tmp_path / "whole", config, data_root=built_data) as run:
        whole = outcome(run.folder, run.finish(measure(config, run))["metrics"])
    folder = tmp_path / "parts"
    for moment in moments:

        def watch(done: int, total: int, what: str, moment: float | str = moment) -> None:
            if isinstance(moment, str):
                run.stopping |= what == moment
            elif what in TRAINING:
                run.stopping |= done >= moment * total

        with Run(folder, config, data_root=built_data, progress=watch) as run:
            with pytest.raises(Interrupted):
                measure(config, run)
        assert run.saved_step
        assert not (folder / "result.json").exists()
    with Run(folder, config, data_root=built_data) as run:
        assert outcome(folder, run.finish(measure(config, run))["metrics"]) == whole
    assert not (folder / "replay").exists()
    assert (folder / "checkpoint.pt").exists() is (name == "graph")


# Training goes on from weights


def saved_graphs(folder: Path, data_root: Path) -> tuple[nn.Module, Any]:
    encoder = encoder_of_graphs(GRAPHS, 1).double()
    graph.save_encoder(encoder, folder, config=GRAPHS, features=1)
    return encoder, GRAPHS


def saved_images(folder: Path, data_root: Path) -> tuple[nn.Module, Any]:
    encoder = encoder_of_images("resnet8", "small")
    config = dataclasses.replace(IMAGES, method="moco_v2", stem="small", weight_decay=0.0)
    vision.save_encoder(encoder, folder, config=config)
    return encoder, config


def saved_clips(folder: Path, data_root: Path) -> tuple[nn.Module, Any]:
    encoder = encoder_of_clips(CLIPS)
    video.export.save_encoder(encoder, folder, config=CLIPS)
    return encoder, CLIPS


def saved_sentences(folder: Path, data_root: Path) -> tuple[nn.Module, Any]:
    config = dataclasses.replace(SENTENCES, encoder="bag_of_words")
    options = {"vocabulary": 1000, "lower_case": False}
    _, tokenizer = text.prepare("manual", "wrapped", data_root, **options)
    model = QuickThought(shape_of(config, len(tokenizer)))
    save_model(folder, model, tokenizer, None)
    return model, config


STARTS: dict[str, tuple[Any, Any, Callable[[Path], nn.Module]]] = {
    "graph": (saved_graphs, graph.measure, graph.load_encoder),
    "vision": (saved_images, vision.measure, vision.load_encoder),
    "video": (saved_clips, video.measure, video.export.load_encoder),
    "text": (
        saved_sentences,
        text.measure,
        lambda folder: QuickThought.from_pretrained(folder / "model"),
    ),
}


@pytest.mark.parametrize("domain", fast_are(STARTS, "graph", "vision"))
def test_a_training_starts_from_what_was_saved(
    domain: str, tmp_path: Path, built_data: Path
) -> None:
    """At a rate of 0 it ends where it started, but for the statistics of batch norms."""
    save, measure, load = STARTS[domain]
    torch.manual_seed(3)
    first, config = save(tmp_path / "first", built_data)
    init = InitialWeights.of(tmp_path / "first")
    config = dataclasses.replace(config, learning_rate=0.0, init=init)
    with Run(tmp_path / "run", config, data_root=built_data) as run:
        run.finish(measure(config, run))
        assert run.environment["data"]["init"] == init.sha256
    for name, parameter in load(tmp_path / "run").named_parameters():
        assert torch.equal(parameter, first.get_parameter(name)), name


# Data of one's own


def given_graphs(seed: int) -> Any:
    x = torch.full((3, 1), float(seed))
    return graph.from_pyg([Data(x=x, edge_index=torch.tensor([[0], [1]]))] * 4)


def given_sentences(seed: int) -> Any:
    generator = np.random.default_rng(seed)
    ids = generator.integers(2, 50, 400).astype(np.uint16)
    return Tokens(ids, np.arange(0, 401, 4), np.zeros(100, np.int32))


def pixels(seed: int, *shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator)


def given_images(seed: int) -> Any:
    return Images(pixels(seed, 8, 3, 16, 16), torch.arange(8) % 2)


def given_clips(seed: int) -> Any:
    videos = tuple(video.data.Video(f"v{number}", 0, number, True) for number in range(4))
    start, length = torch.arange(4) * 9, torch.full((4,), 9)
    return Videos(videos, ("one",), pixels(seed, 36, 3, 17, 17), start, length)


COLOURS = {"mean": (0.5,) * 3, "std": (0.25,) * 3}
OWN: dict[str, tuple[Any, str, Callable[[int], Any], Callable[..., nn.Module], Any]] = {
    "graph": (
        dataclasses.replace(GRAPHS, dataset="MUTAG", epochs=1, batch_size=2),
        "dataset",
        given_graphs,
        lambda *given: graph.pretrain(*given)[0],
        lambda *given, config: graph.save_encoder(*given, config=config, features=1),
    ),
    "vision": (
        dataclasses.replace(IMAGES, dataset="CIFAR10", images=None, batch_size=4, epochs=1),
        "dataset",
        given_images,
        lambda *given: vision.pretrain(*given, **COLOURS)[0].encoder,
        lambda *given, config: vision.save_encoder(*given, config=config, **COLOURS),
    ),
    "video": (
        dataclasses.replace(CLIPS, dataset="ucf101", epochs=1, batch_size=2),
        "dataset",
        given_clips,
        lambda *given: video.pretrain(*given)[0].encoder,
        video.export.save_encoder,
    ),
    "text": (
        dataclasses.replace(SENTENCES, steps=1),
        "corpus",
        given_sentences,
        lambda *given: pretrain(*given, words=50)[0],
        None,
    ),
}


@pytest.mark.parametrize("domain", OWN)
def test_a_run_on_data_of_ones_own_says_so(
    domain: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """And that the data set which its configuration names by default was not read."""
    config, field, given, train, save = OWN[domain]
    said = f"{field}={getattr(config, field)!r} was not read"
    hashes = []
    for place, seed in (("one", 1), ("one", 1), ("same", 1), ("other", 2)):
        with Run(tmp_path / place, config) as run:  # the second time it is resumed
            encoder = train(config, given(seed), run)
            hashes.append(run.environment["data"]["own"])
            assert said in run.environment["notices"][0]
            assert said in capsys.readouterr().err
            if save is not None and place == "other":
                save(encoder, run.folder, config=config)
                run.finish({"accuracy" if domain == "graph" else "top1": 50.0})
    assert hashes[0] == hashes[1] == hashes[2] != hashes[3]
    own = dataclasses.replace(config, **{field: "mine"})
    with Run(tmp_path / "mine", own) as run:
        train(own, given(1), run)
        assert run.environment["data"] == {"own": hashes[0]}
    assert not capsys.readouterr().err
    if save is not None:
        exports = {"graph": graph.export, "vision": vision.export, "video": video.export}
        target = exports[domain].write(tmp_path / "other", tmp_path / "export")
        card = (target / CARD).read_text()
        assert hashes[3] in card
        assert said in card


@pytest.mark.parametrize(
    ("domain", "config", "ending"),
    [(vision, dataclasses.replace(IMAGES, images=None), "png"), (video, CLIPS, "avi")],
)
def test_steps_on_a_folder_are_known_before_anything_is_read(
    tmp_path: Path, domain: Any, config: Any, ending: str
) -> None:
    for number in range(10):
        file = tmp_path / f"pets/train/{'cat' if number % 3 else 'dog'}/{number}.{ending}"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(bytes([number]))
    own = dataclasses.replace(config, dataset=f"folder:{tmp_path / 'pets'}", batch_size=4, epochs=3)
    for batch, steps in ((4, 6), (11, 0)):
        changed = dataclasses.replace(own, batch_size=batch)
        assert domain.DOMAIN.experiment(changed).steps(changed) == steps


# Data that are prepared once


def prepared_frames(root: Path) -> Path:
    random_frames(
        "cartpole_swingup",
        8,
        episodes=2,
        steps=3,
        frame_size=8,
        quality="fast",
        seed=0,
        data_root=root,
    )
    return next((root / "prepared" / "rl").glob("[!.]*"))


def prepared_tokens(root: Path) -> Path:
    text.prepare("manual", "wrapped", root, vocabulary=100, lower_case=False)
    return next((root / "prepared").glob("[!.]*"))


def prepared_clips(root: Path) -> Path:
    video.load("photographs", root, size=16)
    return next((root / "prepared" / "video").glob("photographs-rgb-*"))


@pytest.mark.parametrize("prepare", [prepared_frames, prepared_tokens, prepared_clips])
def test_a_byte_less_in_any_file_that_was_prepared_is_seen(
    prepare: Callable[[Path], Path], tmp_path: Path
) -> None:
    folder = prepare(tmp_path)
    files = [file for file in folder.iterdir() if file.suffix in (".bin", ".json")]
    assert len(files) > 1
    for file in files:
        content = file.read_bytes()
        file.write_bytes(content[:-1])
        with pytest.raises(UserError, match=rf"SHA-256 of {file.name} .*delete {folder}"):
            prepare(tmp_path)
        file.write_bytes(content)
        prepare(tmp_path)
    file.unlink()
    with pytest.raises(UserError, match=f"{file.name} is missing"):
        prepare(tmp_path)


# Tables

CHECKS: dict[str, Callable[[Any], object]] = {
    "rl": rl.config.check,
    "video": video.encoder.check,
    "vision": vision.methods.check,
}
TABLES = {
    f"{domain.__name__}/{paper}/{table.name}/{table.tiers[0]}": (domain.__name__, table)
    for domain in (graph, rl, text, video, vision)
    for paper, some in domain.TABLES.items()
    for table in some
}


@pytest.mark.parametrize("name", TABLES)
def test_rows_are_apart_and_say_how_and_every_cell_means_something(name: str) -> None:
    domain, table = TABLES[name]
    check = CHECKS.get(domain, lambda config: None)
    for tier in table.tiers:
        for cell in table.cells(tier):
            if not isinstance(cell.config, vision.ToyConfig):
                check(cell.config)
    for column in table.columns:
        cells = table.cells(table.tiers[0], column=column.label)
        configs = {(cell.row, canonical_json(cell.config)) for cell in cells}
        assert len(configs) == len({config for _, config in configs})
    readings: dict[str, list[str]] = {}
    for row in table.rows:
        readings.setdefault(row.published or row.label, []).append(row.deviation)
    for deviations in readings.values():
        assert len(deviations) == 1 or all(deviations)
        # Those of graphs tell the pools of augmentations by the label.
        assert len(set(deviations)) == len(deviations) or domain == "graph"


@pytest.mark.parametrize("domain", [rl, text], ids=lambda domain: domain.__name__)
def test_two_papers_share_the_runs_of_equal_rows(domain: Any) -> None:
    for lmcl, cllr in zip(domain.TABLES["lmcl"], domain.TABLES["cllr"], strict=True):
        assert lmcl.tiers == cllr.tiers
        common = {row.label for row in lmcl.rows} & {row.label for row in cllr.rows}
        assert {"DCL", "HCL"} < common
        for tier in lmcl.tiers:
            for label in common:
                one, other = ({c.key for c in t.cells(tier, row=label)} for t in (lmcl, cllr))
                assert one == other
