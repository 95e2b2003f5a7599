import shutil
import zipfile
from dataclasses import replace
from pathlib import Path
from urllib.response import addinfourl

import networkx as nx
import pytest
import torch
from torch import Tensor

from graph import data
from graph.data import ATLAS, Graphs, batches, fetch, fingerprint, load, permutation
from graph.datasets import DATASETS, TUDataset, raw_folder
from shared.errors import UserError
from shared.experiment.data import MissingData


def real_folder(suite_data: Path, name: str) -> Path:
    folder = suite_data / "TUDataset" / name / "raw"
    if not folder.is_dir():
        pytest.skip(f"needs real data: {folder} is no folder")
    return folder


def members(graphs: Graphs) -> list[tuple[Tensor, set[tuple[int, int]], int]]:
    """Every graph as features, edges with local node numbers, and label; by a loop."""
    owner, edges = graphs.batch.tolist(), graphs.edge_index.T.tolist()
    first = [owner.index(number) for number in range(graphs.num_graphs)]
    inside: list[set[tuple[int, int]]] = [set() for _ in first]
    for a, b in edges:
        start = first[owner[a]]
        inside[owner[a]].add((a - start, b - start))
    assert sum(map(len, inside)) == len(edges)
    return [
        (graphs.x[graphs.batch == number], inside[number], int(graphs.y[number]))
        for number in range(graphs.num_graphs)
    ]


# The embedded set


def test_atlas_has_triangles_exactly_in_class_one_and_balanced_sizes():
    data._atlas.cache_clear()
    graphs = load(ATLAS, Path("nowhere"))
    # As records have it.
    assert fingerprint(ATLAS, Path("nowhere")).startswith("7e24cda452e7d5eab750a3c20deb7525")
    assert graphs.num_graphs == 128
    sizes: dict[int, list[tuple[int, int]]] = {0: [], 1: []}
    for x, edges, label in members(graphs):
        graph = nx.Graph(list(edges))
        assert len(graph) == len(x)
        assert nx.is_connected(graph)
        assert torch.equal(x, torch.ones(len(x), 1))
        assert all((b, a) in edges and a != b for a, b in edges)
        assert any(nx.triangles(graph).values()) == bool(label)
        sizes[label].append((len(x), len(edges)))
    assert sorted(sizes[0]) == sorted(sizes[1])


# Batches


@pytest.mark.parametrize("by_graph", [True, False])
def test_batches_contain_each_graph_unchanged_in_the_given_order(by_graph: bool):
    graphs = load(ATLAS, Path("nowhere"))
    if not by_graph:  # as appended self-loops are not
        edges = graphs.edge_index[:, permutation(graphs.edge_index.shape[1], seed=1)]
        graphs = replace(graphs, edge_index=edges)
    expected = members(graphs)
    order = permutation(graphs.num_graphs, seed=3)
    seen = [member for batch in batches(graphs, 50, order) for member in members(batch)]
    assert len(seen) == graphs.num_graphs
    for (x, *others), number in zip(seen, order, strict=True):
        assert torch.equal(x, expected[number][0])
        assert others == [*expected[number][1:]]


# Real files


@pytest.mark.parametrize(
    ("name", "graphs", "classes", "nodes", "edges", "features"),
    [("MUTAG", 188, 2, 17.93, 19.79, 7), ("IMDB-BINARY", 1000, 2, 19.77, 96.53, 1)],
)
def test_real_statistics_are_the_published_ones(
    name: str,
    graphs: int,
    classes: int,
    nodes: float,
    edges: float,
    features: int,
    tmp_path: Path,
    suite_data: Path,
):
    """Edges are undirected and counted once, nodes and edges means per graph."""
    shutil.copytree(real_folder(suite_data, name), tmp_path / "TUDataset" / name / "raw")
    found = load(name, tmp_path)
    assert found.num_graphs == graphs == DATASETS[name].graphs
    assert found.y.unique().tolist() == list(range(classes))
    assert round(len(found.x) / graphs, 2) == nodes
    assert round(found.edge_index.size(1) / 2 / graphs, 2) == edges
    assert found.x.size(1) == features
    assert torch.equal(found.x.sum(1), torch.ones(len(found.x)))
    source, target = found.edge_index
    assert (source != target).all()
    key = source * len(found.x) + target
    assert len(key.unique()) == len(key)
    assert torch.equal(key.sort().values, (target * len(found.x) + source).sort().values)
    assert torch.equal(found.batch[source], found.batch[target])


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A set as it is written: two graphs, labels from 2 to 5, a self-loop and an edge twice."""
    folder = raw_folder("TOY", tmp_path)
    folder.mkdir(parents=True)
    files = {
        "A": "1, 2\n2, 1\n2, 2\n2, 3\n3, 2\n2, 1\n5, 4\n4, 5\n",
        "graph_indicator": "1\n1\n1\n2\n2\n",
        "graph_labels": "1\n-1\n",
        "node_labels": "3\n2\n5\n2\n2\n",
        "node_attributes": "0.5, 1.5\n2.5, 3.5\n4.5, 5.5\n6.5, 7.5\n8.5, 9.5\n",
    }
    for part, text in files.items():
        (folder / f"TOY_{part}.txt").write_text(text)
    monkeypatch.setitem(DATASETS, "TOY", TUDataset(2, fingerprint("TOY", tmp_path)))
    return tmp_path


def test_labels_are_columns_in_their_order_and_attributes_are_dropped(toy: Path):
    for graphs in (load("TOY", toy), load("TOY", toy)):  # parsed, then as stored
        assert graphs.x.tolist() == torch.eye(4)[[1, 0, 3, 0, 0]].tolist()
        assert graphs.edge_index.tolist() == [[0, 1, 1, 2, 3, 4], [1, 0, 2, 1, 4, 3]]
        assert graphs.batch.tolist() == [0, 0, 0, 1, 1]
        assert graphs.y.tolist() == [1, 0]  # in the order of their numbers


def test_a_set_without_labels_of_nodes_has_ones(toy: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(DATASETS, "TOY", TUDataset(2))
    for part in ("node_labels", "node_attributes"):
        (raw_folder("TOY", toy) / f"TOY_{part}.txt").unlink()
    graphs = load("TOY", toy)
    assert graphs.x.tolist() == [[1.0]] * 5
    assert graphs.edge_index.tolist() == [[0, 1, 1, 2, 3, 4], [1, 0, 2, 1, 4, 3]]


def test_a_byte_less_in_any_file_is_seen(toy: Path):
    load("TOY", toy)
    for file in raw_folder("TOY", toy).iterdir():
        content = file.read_bytes()
        file.write_bytes(content[:-1])
        for action in (load, fetch):
            with pytest.raises(UserError, match="raw: not the files"):
                action("TOY", toy)
        file.write_bytes(content)
    load("TOY", toy)


# The parsed file


class Evil:
    """Unpickled, it writes a file."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> tuple[object, ...]:
        return Path.write_text, (self.file, "add_safe_globals")


def test_a_damaged_file_is_named_and_one_with_more_than_plain_data_not_run(
    toy: Path, tmp_path: Path
):
    before = load("TOY", toy)
    parsed = toy / "TUDataset" / "TOY" / "graphs.pt"
    parsed.write_bytes(parsed.read_bytes()[:-200])
    with pytest.raises(UserError, match=r"graphs\.pt"):
        load("TOY", toy)
    torch.save(Evil(tmp_path / "evil"), parsed)
    with pytest.raises(UserError, match=r"graphs\.pt"):
        load("TOY", toy)
    assert not (tmp_path / "evil").exists()
    parsed.unlink()
    assert torch.equal(load("TOY", toy).x, before.x)


def test_the_graphs_of_other_files_are_parsed_anew(toy: Path, monkeypatch: pytest.MonkeyPatch):
    before, known = load("TOY", toy), fingerprint("TOY", toy)
    labels = raw_folder("TOY", toy) / "TOY_node_labels.txt"
    labels.write_text("5" + labels.read_text()[1:])
    assert fingerprint("TOY", toy) != known
    monkeypatch.setitem(DATASETS, "TOY", TUDataset(2))
    assert (before.x[0].argmax(), load("TOY", toy).x[0].argmax()) == (1, 3)


# Fetching


@pytest.fixture
def archive(toy: Path) -> Path:
    """The set as the collection has it, and no longer where it belongs."""
    (toy / "source").mkdir()
    raw_folder("TOY", toy).replace(toy / "source" / "TOY")
    return Path(shutil.make_archive(str(toy / "source" / "TOY"), "zip", toy / "source", "TOY"))


def test_download_is_verified_and_then_loads(
    toy: Path, archive: Path, monkeypatch: pytest.MonkeyPatch
):
    def open_(url: str, timeout: float) -> addinfourl:
        assert url == "https://www.chrsmrrs.com/graphkerneldatasets/TOY.zip"
        return addinfourl(archive.open("rb"), {}, url)  # type: ignore[arg-type]

    monkeypatch.setattr("shared.experiment.data.urlopen", open_)
    with pytest.raises(MissingData, match="TOY"):
        load("TOY", toy)
    fetch("TOY", toy)
    assert load("TOY", toy).num_graphs == 2
    with pytest.raises(UserError, match="TOYS"):
        load("TOYS", toy)


def test_an_archive_put_there_by_hand_is_used_or_named(
    toy: Path, archive: Path, monkeypatch: pytest.MonkeyPatch
):
    place = toy / "TUDataset" / "TOY"
    archive.replace(place / "TOY.zip")
    fetch("TOY", toy)
    assert load("TOY", toy).num_graphs == 2
    shutil.rmtree(place / "raw")
    (place / "TOY.zip").write_text("no archive")
    with pytest.raises(UserError, match=r"TOY\.zip"):
        fetch("TOY", toy)
    with zipfile.ZipFile(place / "TOY.zip", "w") as other:
        other.writestr("another/file", "")
    with pytest.raises(UserError, match=r"/TOY\.zip: has no folder TOY"):
        fetch("TOY", toy)
    # Sets whose raw files have no checksum, and their archive has one.
    monkeypatch.setitem(DATASETS, "TOY", TUDataset(2, archive="0" * 64))
    with pytest.raises(UserError, match=r"TOY\.zip has the SHA-256"):
        fetch("TOY", toy)
