"""Rows that learn nothing, and the second read-out."""

from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.model_selection import StratifiedKFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC

from graph.config import Config
from graph.data import ATLAS, Graphs, load
from graph.encoder import Encoder
from graph.evaluation import calibrate, embed, read_out, sizes, svm_ten_fold
from graph.tables import RANDOM3, RANDOM4, SOCIAL, TABLE_4
from graph.train import measure
from shared.experiment.runs import Run


def triangle_and_pair() -> Graphs:
    """Three nodes of labels a, b, b in a triangle; two of label a, joined."""
    x = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 1.0], [1.0, 0.0], [1.0, 0.0]])
    edges = torch.tensor([[0, 1, 1, 2, 0, 2, 3, 4], [1, 0, 2, 1, 2, 0, 4, 3]])
    return Graphs(x, edges, torch.tensor([0, 0, 0, 1, 1]), torch.tensor([0, 1]))


def test_sizes_count_nodes_edges_and_labels() -> None:
    assert sizes(triangle_and_pair()).tolist() == [[3, 3, 1, 2], [2, 1, 2, 0]]


def test_standardised_read_out_is_a_pipeline_of_scikit_learn() -> None:
    """With one C for all: the scaler is fitted on the training part alone."""
    rng = np.random.default_rng(0)
    labels = np.arange(90) % 2
    features = rng.normal(size=(90, 5)) + 0.8 * labels[:, None]
    features[:, 0] *= 1e4  # rules the kernel where it is not standardised
    features[:, 1] = 3.0  # constant
    found = svm_ten_fold(features, labels, 0, standardise=True)
    folds = StratifiedKFold(10, shuffle=True, random_state=0).split(features, labels)
    expected = []
    for (train, test), cost in zip(folds, found["fold_costs"], strict=True):
        # The scale of a constant feature counts in gamma="scale" as a variance of 0.
        machine = make_pipeline(StandardScaler(), SVC(C=cost, gamma="scale"))
        machine.fit(features[train], labels[train])
        expected.append(100 * machine.score(features[test], labels[test]))
    assert found["fold_accuracies"] == pytest.approx(expected)
    both = read_out(features, labels, 0)
    assert both["accuracy_standardised"] == found["accuracy"]
    assert both["accuracy"] < found["accuracy"] - 5


def test_calibrated_batch_norms_have_the_statistics_of_all_batches() -> None:
    graphs = load(ATLAS, Path("nowhere"))
    torch.manual_seed(0)
    encoder = Encoder(graphs.x.shape[1])
    seen: list[torch.Tensor] = []
    handle = encoder.norms[0].register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    before = embed(encoder, graphs)
    seen.clear()
    calibrate(encoder, graphs, batch_size=20)
    handle.remove()
    assert len(seen) > 1
    means = torch.stack([batch.mean(0) for batch in seen]).mean(0)
    assert torch.allclose(encoder.norms[0].running_mean, means, atol=1e-5)
    assert encoder.norms[0].momentum == 0.1
    assert not np.allclose(embed(encoder, graphs), before)


@pytest.mark.slow
def test_floors_run_as_cells_do(tmp_path: Path) -> None:
    accuracies = {}
    for row in ("largest class", "sizes and labels"):
        (cell,) = TABLE_4.cells("smoke", row=row)
        with Run(tmp_path / row, cell.config, data_root=tmp_path) as folder:
            accuracies[row] = measure(cell.config, folder)["accuracy"]
    graphs = load(ATLAS, tmp_path)
    share = 100 * torch.bincount(graphs.y).max() / len(graphs.y)
    assert accuracies["largest class"] == pytest.approx(float(share), abs=5)  # ties in folds
    scored = read_out(sizes(graphs), graphs.y.numpy(), cell.config.fold_seed)
    assert accuracies["sizes and labels"] == scored["accuracy"]


def test_the_program_takes_its_own_pools_on_the_social_sets() -> None:
    pools = {
        (cell.row, cell.column): cell.config.augmentations
        for cell in TABLE_4.cells("paper")
        if cell.config.authors_augmentation
    }
    social = {column for _, column in pools if column not in ("DD", "MUTAG")}
    assert social == {"REDDIT-BINARY", "REDDIT-MULTI-5K", "IMDB-BINARY"}
    for (row, column), pool in pools.items():
        if column not in social:
            assert pool == ("node_drop", "subgraph")
            assert "random4" not in row
        else:
            assert pool == (RANDOM4 if "random4" in row else RANDOM3)
    (text,) = {c.config.augmentations for c in TABLE_4.cells(row="GraphCL", column="IMDB-BINARY")}
    assert text == SOCIAL


def test_what_was_declared_before_the_runs_in_double_precision() -> None:
    cells = TABLE_4.cells("paper")
    assert {cell.config.precision for cell in cells} == {Config().precision} == {"float64"}
    seeds: dict[tuple[str, str], int] = {}
    for cell in cells:
        seeds[cell.column, cell.row] = seeds.get((cell.column, cell.row), 0) + 1
    counted: dict[tuple[str, bool], set[int]] = {}
    for row in TABLE_4.rows:
        for column in ("MUTAG", "IMDB-BINARY", "DD", "REDDIT-BINARY"):
            if row.seeds is None and (column, row.label) in seeds:
                place = column, row.published is not None
                counted.setdefault(place, set()).add(seeds[column, row.label])
    assert counted == {
        ("MUTAG", True): {20},
        ("MUTAG", False): {20},
        ("IMDB-BINARY", True): {20},
        ("IMDB-BINARY", False): {20},
        ("DD", True): {20},
        ("DD", False): {10},
        ("REDDIT-BINARY", True): {10},
        ("REDDIT-BINARY", False): {5},
    }
