import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import graph
from graph.config import Config
from graph.data import load
from graph.tables import TABLE_4
from shared.experiment.run import Run
from tests.stages.training import finish, losses

ROOT = Path(__file__).resolve().parents[2]
ATLAS = Config(dataset="atlas", epochs=3, batch_size=64)


@pytest.mark.slow
@pytest.mark.parametrize("row", [row.label for row in TABLE_4.rows if not row.baseline])
def test_every_row_trains_on_embedded_graphs(tmp_path: Path, row: str) -> None:
    config = dataclasses.replace(TABLE_4.cells("smoke", row=row)[0].config, epochs=1)
    with Run(tmp_path, config) as run:
        encoder, _ = graph.pretrain(config, load("atlas", tmp_path), run)
    assert all(parameter.isfinite().all() for parameter in encoder.parameters())
    assert len(losses(tmp_path)) == 1


PATHS = {  # of arithmetic beside the usual one, by what chooses them
    "MKL for AVX": {"MKL_CBWR": "AVX"},
    "torch without vector instructions": {"ATEN_CPU_CAPABILITY": "default"},
}


@pytest.mark.slow
def test_code_paths_of_a_processor_agree_in_the_metric(tmp_path: Path) -> None:
    """In single precision they end up points apart: what differs in a last bit grows each epoch."""
    program = (
        "import sys, torch; from pathlib import Path; import graph\n"
        "from shared.experiment.run import Run\n"
        "torch.set_num_threads(1)\n"
        "config = graph.Config(dataset='atlas', epochs=10)\n"
        "with Run(Path(sys.argv[1]), config) as run: run.finish(graph.measure(config, run))\n"
    )
    usual = finish(tmp_path / "usual", Config(dataset="atlas", epochs=10), graph.measure)
    for name, variables in PATHS.items():
        subprocess.run(
            [sys.executable, "-c", program, str(tmp_path / name)],
            cwd=ROOT,
            env=os.environ | variables,
            check=True,
        )
        result = json.loads((tmp_path / name / "result.json").read_text())
        assert result["metrics"]["accuracy"] == pytest.approx(usual["accuracy"], abs=1e-5)
        assert losses(tmp_path / name) == pytest.approx(losses(tmp_path / "usual"), rel=1e-5)


def test_a_diverging_run_names_the_step(tmp_path: Path) -> None:
    config = dataclasses.replace(ATLAS, learning_rate=1e200)
    with pytest.raises(FloatingPointError, match=r"NaN or infinite at step [1-9]"):
        finish(tmp_path, config, graph.measure)
    assert not (tmp_path / "result.json").exists()


@pytest.mark.slow
def test_pretraining_beats_the_untrained_encoder_on_mutag(tmp_path: Path, suite_data: Path) -> None:
    """Two seeds on real molecules: the level of the published table is 3 points above."""
    accuracy = {}
    for train in (False, True):
        runs = []
        for seed in (0, 1):
            config = Config(dataset="MUTAG", train=train, seed=seed)
            folder = tmp_path / f"{train}-{seed}"
            metrics = finish(folder, config, graph.measure, data_root=suite_data)
            runs.append(metrics["accuracy"])
        accuracy[train] = np.mean(runs)
    assert 80 < accuracy[False] < accuracy[True]
    assert accuracy[True] > 85
