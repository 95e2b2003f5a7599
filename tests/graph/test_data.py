import shutil
import zipfile
from pathlib import Path
from urllib.error import URLError
from urllib.response import addinfourl

import networkx as nx
import pytest
import torch
from torch import Tensor

from graph.data import (
    ARCHIVES,
    ATLAS,
    CONTENTS,
    Graphs,
    batches,
    fetch,
    fingerprint,
    load,
    permutation,
    verify_raw,
)
from graph.datasets import DATASETS, Statistics
from shared.errors import UserError
from shared.experiment.data import MissingData, sha256_of


def real_folder(suite_data: Path, name: str) -> Path:
    folder = suite_data / "TUDataset" / name / "raw"
    if not folder.is_dir():
        pytest.skip(f"needs real data: {folder} is no folder")
    return folder


@pytest.fixture
def mutag(tmp_path: Path, suite_data: Path) -> Path:
    """A data root with a copy of MUTAG's raw files, free to be damaged."""
    shutil.copytree(real_folder(suite_data, "MUTAG"), tmp_path / "TUDataset" / "MUTAG" / "raw")
    return tmp_path


def raw_file(root: Path, part: str) -> Path:
    return root / "TUDataset" / "MUTAG" / "raw" / f"MUTAG_{part}.txt"


def change_line(path: Path, line: int, text: str) -> None:
    lines = path.read_text().splitlines()
    lines[line - 1] = text
    path.write_text("\n".join(lines) + "\n")


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


def same(one: tuple[Tensor, set, int], other: tuple[Tensor, set, int]) -> bool:
    return torch.equal(one[0], other[0]) and one[1:] == other[1:]


# The embedded set


def test_atlas_has_triangles_exactly_in_class_one_and_balanced_sizes():
    graphs = load(ATLAS, Path("nowhere"))
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


def test_batches_contain_each_graph_unchanged_in_the_given_order():
    graphs = load(ATLAS, Path("nowhere"))
    expected = members(graphs)
    order = permutation(graphs.num_graphs, seed=3)
    seen = [member for batch in batches(graphs, 50, order) for member in members(batch)]
    assert len(seen) == graphs.num_graphs
    assert all(same(member, expected[i]) for member, i in zip(seen, order, strict=True))


# Real files


@pytest.mark.parametrize("name", ["MUTAG", "IMDB-BINARY"])
def test_real_statistics_are_the_published_ones(name: str, tmp_path: Path, suite_data: Path):
    target = tmp_path / "TUDataset" / name / "raw"
    shutil.copytree(real_folder(suite_data, name), target)
    graphs, published = load(name, tmp_path), DATASETS[name]
    assert graphs.num_graphs == published.graphs
    assert graphs.y.unique().tolist() == list(range(published.classes))
    assert round(len(graphs.x) / graphs.num_graphs, 2) == published.nodes
    assert round(graphs.edge_index.size(1) / 2 / graphs.num_graphs, 2) == published.edges
    assert graphs.x.size(1) == published.features
    assert torch.equal(graphs.x.sum(1), torch.ones(len(graphs.x)))
    source, target_node = graphs.edge_index
    assert (source != target_node).all()
    key = source * len(graphs.x) + target_node
    assert len(key.unique()) == len(key)
    assert torch.equal(key.sort().values, (target_node * len(graphs.x) + source).sort().values)
    assert torch.equal(graphs.batch[source], graphs.batch[target_node])


def test_labels_are_columns_in_their_order_and_attributes_are_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """A set as it is written: two graphs, labels from 2 to 5, a self-loop and an edge twice."""
    folder = tmp_path / "TUDataset" / "TOY" / "raw"
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
    monkeypatch.setitem(DATASETS, "TOY", Statistics(2, 2, 2.5, 1.5, 4))
    for graphs in (load("TOY", tmp_path), load("TOY", tmp_path)):  # parsed, then as stored
        assert graphs.x.tolist() == torch.eye(4)[[1, 0, 3, 0, 0]].tolist()
        assert graphs.edge_index.tolist() == [[0, 1, 1, 2, 3, 4], [1, 0, 2, 1, 4, 3]]
        assert graphs.batch.tolist() == [0, 0, 0, 1, 1]
        assert graphs.y.tolist() == [1, 0]  # in the order of their numbers


def test_first_molecule_is_read_as_written(mutag: Path):
    graph_of = [int(g) for g in raw_file(mutag, "graph_indicator").read_text().split()]
    labels = [int(v) for v in raw_file(mutag, "node_labels").read_text().split()]
    rows = [line.split(",") for line in raw_file(mutag, "A").read_text().splitlines()]
    size = graph_of.count(1)
    edges = {(int(a) - 1, int(b) - 1) for a, b in rows if int(a) <= size}
    first = members(next(batches(load("MUTAG", mutag), 1)))[0]
    assert first[1] == edges
    assert first[0].argmax(1).tolist() == labels[:size]


def test_missing_data_name_the_command(tmp_path: Path):
    with pytest.raises(MissingData, match=r"reproduce\.sh data graph --dataset DD") as caught:
        load("DD", tmp_path)
    assert "\n" not in str(caught.value)


def test_unknown_dataset_lists_the_known_ones(tmp_path: Path):
    with pytest.raises(UserError, match="unknown dataset 'MUTAGG'; known are MUTAG, DD"):
        load("MUTAGG", tmp_path)


def test_every_damage_is_named_with_file_and_line(mutag: Path):
    folder = mutag / "TUDataset" / "MUTAG" / "raw"
    verify_raw(folder, "MUTAG")

    def damage(part: str, line: int, text: str, message: str) -> None:
        path = raw_file(mutag, part)
        intact = path.read_bytes()
        change_line(path, line, text)
        with pytest.raises(UserError, match=message) as caught:
            verify_raw(folder, "MUTAG")
        path.write_bytes(intact)
        assert str(caught.value).startswith(f"{path}, line {line}: ")
        assert "\n" not in str(caught.value)

    damage("A", 17, "3, x", "'x' is not an integer")
    damage("A", 19, "3, 4, 5", "3 values instead of 2")
    damage("A", 20, "", "the line is empty")
    damage("A", 22, "3, 3372", "edge 3, 3372 leaves the nodes 1 to 3371")
    damage("A", 23, "0, 3", "edge 0, 3 leaves the nodes 1 to 3371")
    damage("A", 24, "1, 3371", "edge 1, 3371 joins two graphs")
    damage("graph_indicator", 1, "2", "graph 2 comes first")
    damage("graph_indicator", 30, "9", "graph 9 comes after graph 2")
    damage("node_labels", 7, "a" * 100, f"'{'a' * 40}' is not an integer")
    damage("edge_labels", 9, "1e99", "'1e99' is not an integer")


def test_truncated_files_are_named(mutag: Path):
    folder = mutag / "TUDataset" / "MUTAG" / "raw"

    def truncate(part: str, keep: int, message: str) -> None:
        path = raw_file(mutag, part)
        intact = path.read_bytes()
        path.write_bytes(intact[:keep])
        with pytest.raises(UserError, match=message) as caught:
            verify_raw(folder, "MUTAG")
        path.write_bytes(intact)
        assert str(path) in str(caught.value)
        assert "--dataset MUTAG" in str(caught.value)

    def end_of(part: str, lines: int) -> int:
        return len(b"".join(raw_file(mutag, part).read_bytes().splitlines(True)[:lines]))

    truncate("A", -1, "line 7442: the file ends in the middle of the line")
    truncate("A", 0, "line 1: the file ends")
    truncate("graph_indicator", end_of("graph_indicator", 3300), "graphs, published are 188")
    truncate("graph_indicator", end_of("graph_indicator", 3360), "nodes per graph, published")
    truncate("graph_labels", end_of("graph_labels", 187), "187 lines for 188 graphs")
    truncate("node_labels", end_of("node_labels", 3370), "3370 lines for 3371 nodes")
    truncate("edge_labels", end_of("edge_labels", 7441), "7441 lines for 7442 edges")
    raw_file(mutag, "edge_labels").unlink()
    truncate("A", end_of("A", 7441), "lacks its opposite direction")
    truncate("A", end_of("A", 7400), "undirected edges per graph, published are 19.79")
    raw_file(mutag, "node_labels").unlink()
    with pytest.raises(UserError, match=r"MUTAG_node_labels.txt: file missing"):
        verify_raw(folder, "MUTAG")


def test_line_ends_of_another_system_change_nothing(mutag: Path):
    before = load("MUTAG", mutag)
    for file in (mutag / "TUDataset" / "MUTAG" / "raw").iterdir():
        file.write_bytes(file.read_bytes().replace(b"\n", b"\r\n"))
    after = load("MUTAG", mutag)
    assert all(torch.equal(one, vars(after)[name]) for name, one in vars(before).items())


def test_wrong_labels_are_not_taken_for_the_published_set(mutag: Path):
    folder = mutag / "TUDataset" / "MUTAG" / "raw"
    change_line(raw_file(mutag, "node_labels"), 3, "12")
    with pytest.raises(UserError, match="labels span 13 values, published are 7"):
        verify_raw(folder, "MUTAG")
    change_line(raw_file(mutag, "graph_labels"), 3, "5")
    with pytest.raises(UserError, match="3 classes, published are 2"):
        verify_raw(folder, "MUTAG")


# The parsed file


def test_damaged_parsed_file_is_named(mutag: Path):
    load("MUTAG", mutag)
    parsed = mutag / "TUDataset" / "MUTAG" / "graphs.pt"
    parsed.write_bytes(parsed.read_bytes()[:-200])
    with pytest.raises(UserError, match=r"graphs\.pt: damaged .*, delete it"):
        load("MUTAG", mutag)
    parsed.unlink()
    assert load("MUTAG", mutag).num_graphs == 188


class Evil:
    """Unpickled, it writes a file."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> tuple[object, ...]:
        return Path.write_text, (self.file, "add_safe_globals")


def test_nothing_is_unpickled_that_is_not_plain_data(mutag: Path, tmp_path: Path):
    before = load("MUTAG", mutag)
    folder = mutag / "TUDataset" / "MUTAG"
    (folder / "processed").mkdir()
    for file in (folder / "graphs.pt", folder / "processed" / "data.pt"):
        torch.save(Evil(tmp_path / "evil"), file)
    with pytest.raises(UserError, match=r"graphs\.pt: damaged") as caught:
        load("MUTAG", mutag)
    assert "weights_only" not in str(caught.value)
    (folder / "graphs.pt").unlink()
    assert torch.equal(load("MUTAG", mutag).x, before.x)
    assert not (tmp_path / "evil").exists()


def test_stale_or_unfinished_parsed_file_is_made_anew(mutag: Path):
    before = load("MUTAG", mutag)
    known = fingerprint("MUTAG", mutag)
    change_line(raw_file(mutag, "node_labels"), 1, "1")
    assert fingerprint("MUTAG", mutag) != known
    after = load("MUTAG", mutag)
    assert before.x[0].argmax() == 0
    assert after.x[0].argmax() == 1
    left = mutag / "TUDataset" / "MUTAG" / ".graphs.pt.1.part"
    left.write_bytes(b"half a fi")  # of a process that was killed
    assert torch.equal(load("MUTAG", mutag).x, after.x)


# Fetching


def test_fetch_verifies_what_is_there(mutag: Path):
    fetch("MUTAG", mutag)
    fetch(ATLAS, mutag)
    change_line(raw_file(mutag, "A"), 5, "one, two")
    with pytest.raises(UserError, match=r"MUTAG_A.txt, line 5: 'one' is not an integer"):
        fetch("MUTAG", mutag)


def download_from(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the files of a folder stand for those of the collection's site."""

    def open_(url: str, timeout: float) -> addinfourl:
        assert url.startswith("https://www.chrsmrrs.com/graphkerneldatasets/")
        return addinfourl((folder / url.rpartition("/")[2]).open("rb"), {}, url)  # type: ignore[arg-type]

    monkeypatch.setattr("shared.experiment.data.urlopen", open_)


def archive(suite_data: Path, name: str, folder: Path) -> Path:
    """An archive of raw files, as the collection has it."""
    shutil.copytree(real_folder(suite_data, name), folder / name)
    return Path(shutil.make_archive(str(folder / name), "zip", folder, name))


def test_download_is_verified_and_then_loads(
    tmp_path: Path, suite_data: Path, monkeypatch: pytest.MonkeyPatch
):
    file = archive(suite_data, "MUTAG", tmp_path / "source")
    download_from(tmp_path / "source", monkeypatch)
    # This copy is packed otherwise than the collection's.
    with pytest.raises(UserError, match=r"its SHA-256 is \w+, not c419bdc8"):
        fetch("MUTAG", tmp_path / "data")
    with pytest.raises(MissingData):
        load("MUTAG", tmp_path / "data")
    monkeypatch.setitem(ARCHIVES, "MUTAG", sha256_of(file))
    fetch("MUTAG", tmp_path / "data")
    assert load("MUTAG", tmp_path / "data").num_graphs == 188


def test_without_a_checksum_of_the_archive_there_is_one_of_the_graphs(
    tmp_path: Path, suite_data: Path, monkeypatch: pytest.MonkeyPatch
):
    assert set(DATASETS) == {*ARCHIVES, *CONTENTS}
    archive(suite_data, "PROTEINS", tmp_path / "source")
    download_from(tmp_path / "source", monkeypatch)
    fetch("PROTEINS", tmp_path / "data")
    labels = tmp_path / "data" / "TUDataset" / "PROTEINS" / "raw" / "PROTEINS_node_labels.txt"
    change_line(labels, 1, "0" if labels.read_text()[0] == "1" else "1")
    with pytest.raises(UserError, match=r"raw: not the published graphs; delete it and .*\.zip,"):
        fetch("PROTEINS", tmp_path / "data")


def test_an_archive_put_there_by_hand_is_used_or_named(
    tmp_path: Path, suite_data: Path, monkeypatch: pytest.MonkeyPatch
):
    def offline(url: str, timeout: float) -> object:
        raise URLError("no network")

    monkeypatch.setattr("shared.experiment.data.urlopen", offline)
    place = tmp_path / "data" / "TUDataset" / "PROTEINS"
    place.mkdir(parents=True)
    with pytest.raises(UserError, match=r"put the file into .* and run the same command"):
        fetch("PROTEINS", tmp_path / "data")
    shutil.copy(archive(suite_data, "PROTEINS", tmp_path / "source"), place)
    fetch("PROTEINS", tmp_path / "data")
    assert load("PROTEINS", tmp_path / "data").num_graphs == 1113

    shutil.rmtree(place / "raw")
    (place / "PROTEINS.zip").write_text("no archive")
    with pytest.raises(UserError, match=r"PROTEINS\.zip cannot be used: .*; delete it, or replace"):
        fetch("PROTEINS", tmp_path / "data")
    with zipfile.ZipFile(place / "PROTEINS.zip", "w") as other:
        other.writestr("another/file", "")
    with pytest.raises(UserError, match=r"PROTEINS\.zip: has no folder PROTEINS; delete it"):
        fetch("PROTEINS", tmp_path / "data")
    (place.parent / "MUTAG").mkdir()
    shutil.copy(place / "PROTEINS.zip", place.parent / "MUTAG" / "MUTAG.zip")
    with pytest.raises(UserError, match=r"the existing .*MUTAG\.zip has the SHA-256 \w+, not c4"):
        fetch("MUTAG", tmp_path / "data")
