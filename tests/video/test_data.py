import hashlib
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

import video.data
import video.flow
from shared.experiment.data import MissingData
from tests.stages.errors import error_of
from tests.video.test_decoding import write_avi
from video.config import EMBEDDED
from video.data import Video, Videos, fetch, fingerprint, load, stored_side
from video.decoding import decode

# Official numbers that are not in the order of the names.
CLASSES = {"Punch": 1, "Archery": 2, "Surfing": 3}
WIDTH, HEIGHT = 32, 24


def shade(name: str, frame: int) -> int:
    """The gray of a video's frame; no two videos have the same."""
    return 20 + hashlib.sha256(name.encode()).digest()[0] % 100 + 8 * frame


def write_grays(
    file: Path, shades: Sequence[int], *, size: tuple[int, int] = (WIDTH, HEIGHT)
) -> None:
    write_avi(file, [np.full((size[1], size[0], 3), value, np.uint8) for value in shades])


def name_of(folder: str, group: int, clip: int = 1) -> str:
    return f"v_{folder}_g{group:02d}_c{clip:02d}"


def file_of(root: Path, name: str) -> Path:
    return root / "UCF-101" / name.split("_")[1] / f"{name}.avi"


def length_of(name: str) -> int:
    return 3 + int(name[-2:]) + (name.split("_")[1] == "Punch")


@pytest.fixture
def official(tmp_path: Path) -> Path:
    """Two of three classes, six videos each, with all lists; group g tests in split g."""
    lists = tmp_path / "ucfTrainTestlist"
    lists.mkdir()
    numbered = sorted(CLASSES.items(), key=lambda item: item[1])
    (lists / "classInd.txt").write_text("".join(f"{n} {name}\n" for name, n in numbered))
    for split in (1, 2, 3):
        lines: dict[str, list[str]] = {"train": [], "test": []}
        for folder, number in sorted(CLASSES.items()):
            for group in (1, 2, 3):
                for clip in (1, 2):
                    path = f"{folder}/{name_of(folder, group, clip)}.avi"
                    if group == split:
                        lines["test"].append(path)
                    else:
                        lines["train"].append(f"{path} {number}")
        for part, its in lines.items():
            (lists / f"{part}list0{split}.txt").write_text("\n".join(its) + "\n\n")
    for folder in ("Archery", "Punch"):
        for group in (1, 2, 3):
            for clip in (1, 2):
                name = name_of(folder, group, clip)
                shades = [shade(name, frame) for frame in range(length_of(name))]
                write_grays(file_of(tmp_path, name), shades)
    return tmp_path


def kept_folders(root: Path, modality: str = "rgb") -> list[Path]:
    return sorted((root / "prepared" / "video").glob(f"ucf101-{modality}-*"))


def of_name(videos: Videos, name: str) -> torch.Tensor:
    place = [video.name for video in videos.videos].index(name)
    start, length = int(videos.start[place]), int(videos.length[place])
    return videos.frames[start : start + length]


# Index and splits


def test_a_split_has_the_listed_videos_and_their_frames(official: Path):
    videos = load("ucf101", official, split=2, size=21)
    assert videos.classes == ("Punch", "Archery")  # in the official order, Surfing is missing
    expected = tuple(
        Video(name_of(folder, group, clip), label, group, group != 2)
        for label, folder in enumerate(("Punch", "Archery"))
        for group in (1, 2, 3)
        for clip in (1, 2)
    )
    assert videos.videos == expected
    assert videos.left_out == ()
    train, test = videos.of(train=True), videos.of(train=False)
    assert {video.group for video in train.videos} == {1, 3}
    assert [video.name for video in test.videos] == [v.name for v in expected if v.group == 2]
    for part in (train, test):
        assert part.frames is videos.frames
        assert part.classes == videos.classes
        for each in part.videos:
            assert torch.equal(of_name(part, each.name), of_name(videos, each.name))
    other = load("ucf101", official, split=3, size=21)
    assert {video.group for video in other.of(train=False).videos} == {3}
    assert len(kept_folders(official)) == 1  # all splits share what is decoded
    videos = load("ucf101", official, size=21)
    assert videos.frames.shape == (60, 3, HEIGHT, WIDTH)
    assert videos.frames.dtype == torch.uint8
    for each in videos.videos:
        frames = of_name(videos, each.name)
        assert len(frames) == length_of(each.name)
        decoded = np.stack(list(decode(file_of(official, each.name))))
        np.testing.assert_array_equal(frames.permute(0, 2, 3, 1), decoded)
        for number, frame in enumerate(frames.float()):
            assert abs(frame.mean() - shade(each.name, number)) < 3


def test_frames_are_resized_to_the_shorter_side(official: Path):
    assert [stored_side(size) for size in (7, 8, 112, 128)] == [8, 10, 128, 147]
    videos = load("ucf101", official, size=8)
    assert videos.frames.shape == (60, 3, 10, 13)
    name = name_of("Punch", 3, 2)
    assert abs(of_name(videos, name)[4].float().mean() - shade(name, 4)) < 3
    assert kept_folders(official)[0].name.startswith("ucf101-rgb-10-")
    # An edge stays where it is.
    edge = np.zeros((45, 60, 3), np.uint8)
    edge[:, 30:] = 255
    np.testing.assert_array_equal(video.data._resized(edge, 15)[0, [8, 11], 0], [0, 255])
    assert np.array_equal(video.data._resized(edge, 45), edge)


def test_what_is_missing_is_named_and_classes_may_be(official: Path):
    lists = official / "ucfTrainTestlist"
    for file, split in (("classInd.txt", 1), ("trainlist01.txt", 1), ("testlist03.txt", 3)):
        content = (lists / file).read_text()
        (lists / file).unlink()
        assert file in error_of(lambda split=split: load("ucf101", official, split=split, size=21))
        (lists / file).write_text(content)
    (lists / "testlist02.txt").unlink()
    load("ucf101", official, split=1, size=21)  # which does not need it
    assert "testlist02.txt" in error_of(lambda: fetch("ucf101", official))
    (official / "UCF-101" / "Archery").rename(official / "elsewhere")
    videos = load("ucf101", official, size=21)
    assert videos.classes == ("Punch",)
    assert {video.label for video in videos.videos} == {0}
    (official / "UCF-101" / "Punch").rename(official / "Punch")
    for action in (
        lambda: load("ucf101", official, size=21),
        lambda: fingerprint("ucf101", official / "nowhere"),
        lambda: load("hmdb51", official, size=21),
    ):
        with pytest.raises(MissingData, match="data video"):
            action()


@pytest.mark.parametrize(
    ("file", "line"), [("trainlist01.txt", "Punch/Punch_1.avi 1"), ("classInd.txt", "Four")]
)
def test_damaged_lists(official: Path, file: str, line: str):
    path = official / "ucfTrainTestlist" / file
    number = len([*path.read_text().splitlines()]) + 1
    path.write_text(f"{path.read_text()}{line}\n")
    message = error_of(lambda: load("ucf101", official, size=21))
    assert message.startswith(f"{path}, line {number}: ")
    path.write_bytes(b"\xff\xfe1\x00")
    assert file in error_of(lambda: load("ucf101", official, size=21))


@pytest.mark.parametrize("before", ["/my data/UCF-101/", "..\\UCF-101\\"])
def test_lists_of_other_programs_and_systems_are_read(official: Path, before: str):
    expected = load("ucf101", official, size=21).videos
    for file in (official / "ucfTrainTestlist").iterdir():
        lines = file.read_text().splitlines()
        if file.name == "classInd.txt":
            lines = [line.replace(" ", "\t") for line in lines]
        else:
            lines = [before + line.replace("/", before[-1]) for line in lines if line]
        file.write_bytes(("\ufeff" + "\r\n".join(lines)).encode())
    assert fetch("ucf101", official) == "12 videos of 2 of 3 classes: Punch 6, Archery 6"
    assert load("ucf101", official, size=21).videos == expected


def test_folders_and_lists_have_to_fit_together(official: Path):
    videos = official / "UCF-101"
    # What is hidden, other folders, and files that are no videos do not matter.
    (videos / "__MACOSX" / "Punch").mkdir(parents=True)
    (videos / ".cache").mkdir()
    (videos / "notes").mkdir()
    (videos / ".cache" / "v_Punch_g01_c01.avi").touch()
    (videos / "Punch" / "._v_Punch_g01_c01.avi").write_bytes(b"Mac OS X")
    (videos / "Punch" / "again").symlink_to(videos / "Punch")
    assert fetch("ucf101", official) == "12 videos of 2 of 3 classes: Punch 6, Archery 6"

    lists = official / "ucfTrainTestlist"
    for file in lists.glob("*list0*.txt"):
        file.write_text("".join(f"{e}\n" for e in file.read_text().split() if "Archery/" in e))
    for action in (lambda: fetch("ucf101", official), lambda: load("ucf101", official, size=21)):
        assert "Punch" in error_of(action)


# HMDB51

ACTIONS = ("brush_hair", "sword", "sword_exercise")
SIZES = {1: (32, 24), 2: (48, 24), 3: (24, 24), 4: (40, 24)}


@pytest.fixture
def hmdb51(tmp_path: Path) -> Path:
    """Two of three classes, eight clips each of four films, in the layout of the archives.

    Film g tests in split g; of the fourth, one clip trains and the other is in neither part.
    """
    lists = tmp_path / "testTrainMulti_7030_splits"
    lists.mkdir()
    for action in ACTIONS:
        clips = [
            f"Film_{film}_{action}_u_nm_np1_fr_goo_{clip}.avi"
            for film in (1, 2, 3, 4)
            for clip in (0, 1)
        ]
        for split in (1, 2, 3):
            parts = ["2" if f"Film_{split}_" in name else "1" for name in clips[:6]] + ["1", "0"]
            lines = [f"{name} {part} \n" for name, part in zip(clips, parts, strict=True)]
            (lists / f"{action}_test_split{split}.txt").write_text("".join(lines))
        if action != "sword":
            for name in clips:
                size = SIZES[int(name.split("_")[1])]
                shades = [shade(name, frame) for frame in range(3)]
                write_grays(tmp_path / "hmdb51_org" / action / name, shades, size=size)
    return tmp_path


def test_the_three_splits_of_hmdb51(hmdb51: Path):
    for split in (1, 2, 3):
        videos = load("hmdb51", hmdb51, split=split, size=16)
        assert videos.classes == ("brush_hair", "sword_exercise")
        train, test = videos.of(train=True), videos.of(train=False)
        assert [(video.label, video.name) for video in test.videos] == [
            (label, f"Film_{split}_{action}_u_nm_np1_fr_goo_{clip}")
            for label, action in enumerate(videos.classes)
            for clip in (0, 1)
        ]
        # One of the last film's clips is in neither part.
        assert len(train.videos) == 10
        assert not {video.name for video in videos.videos if "Film_4" in video.name} & {
            f"Film_4_{action}_u_nm_np1_fr_goo_1" for action in ACTIONS
        }
        # A film that two classes share is one group.
        groups = {video.name.split("_")[1]: video.group for video in videos.videos}
        assert groups == {"1": 0, "2": 1, "3": 2, "4": 3}
        assert {video.group for video in test.videos} == {split - 1}
    assert len(list((hmdb51 / "prepared" / "video").glob("hmdb51-rgb-19-*"))) == 1
    # Whatever the width, the central part of 4:3 is kept.
    assert videos.frames.shape == (48, 3, 19, 25)
    for each in videos.videos:
        frames = of_name(videos, each.name)
        assert abs(frames[0].float().mean() - shade(f"{each.name}.avi", 0)) < 3
    assert fetch("hmdb51", hmdb51) == (
        "14 videos of 2 of 3 classes: brush_hair 7, sword_exercise 7"
    )
    before = fingerprint("hmdb51", hmdb51)
    list_ = hmdb51 / "testTrainMulti_7030_splits" / "sword_test_split3.txt"
    list_.write_text(list_.read_text().replace(" 0 ", " 2 "))
    assert fingerprint("hmdb51", hmdb51) != before


def test_the_centre_of_wide_and_high_frames_is_kept():
    wide = np.zeros((30, 80, 3), np.uint8)
    wide[:, 20:60] = 200
    found = video.data._resized(wide, 15)
    assert found.shape == (15, 20, 3)
    assert (found[:, 1:-1] == 200).all()  # what borders on the rest is blended with it
    assert (found[:, [0, -1]] > 150).all()
    high = np.zeros((60, 40, 3), np.uint8)
    high[15:45] = 200
    found = video.data._resized(high, 60)  # kept frames have one shape: enlarged
    assert found.shape == (60, 80, 3)
    assert (found[2:-2] == 200).all()


def test_damaged_and_missing_parts_of_hmdb51_are_named(hmdb51: Path):
    gone = hmdb51 / "hmdb51_org" / "brush_hair" / "Film_1_brush_hair_u_nm_np1_fr_goo_0.avi"
    gone.unlink()
    assert gone.stem in error_of(lambda: fetch("hmdb51", hmdb51))
    path = hmdb51 / "testTrainMulti_7030_splits" / "brush_hair_test_split1.txt"
    path.write_text(f"{path.read_text()}Film_9_brush_hair_u_nm_np1_fr_goo_0.avi\n")
    assert error_of(lambda: load("hmdb51", hmdb51, size=16)).startswith(f"{path}, line 9: ")
    path.unlink()
    assert error_of(lambda: load("hmdb51", hmdb51, size=16)).startswith(f"{path}: ")


# Files that cannot be decoded


def damage(root: Path) -> dict[str, str]:
    """Make some videos unusable; their names in the order of the videos, and why."""
    cut, short = (name_of("Punch", group, 2) for group in (1, 2))
    gone, text = name_of("Archery", 1, 2), name_of("Archery", 2, 2)
    content = file_of(root, cut).read_bytes()
    file_of(root, cut).write_bytes(content[: len(content) // 2])
    write_grays(file_of(root, short), [100])
    file_of(root, gone).unlink()
    file_of(root, text).write_text("no video")
    why = "cannot be decoded (Invalid data found when processing input)"
    return {gone: "missing", cut: why, short: "1 frames, fewer than 2", text: why}


def test_unusable_videos_stop_or_are_left_out(official: Path):
    faults = damage(official)
    assert "1 of 12" in error_of(lambda: load("ucf101", official, size=21))
    assert not kept_folders(official)
    videos = load("ucf101", official, size=21, allow_missing=True)
    assert videos.left_out == tuple(f"{name}: {why}" for name, why in faults.items())
    assert len(videos.videos) == 8
    assert not {video.name for video in videos.videos} & set(faults)
    for each in videos.videos:
        frames = of_name(videos, each.name)
        assert len(frames) == length_of(each.name)
        assert abs(frames[2].float().mean() - shade(each.name, 2)) < 3
    # Once the missing one is back, the others are what stops a run, all at once.
    write_grays(file_of(official, next(iter(faults))), [10, 20])
    message = error_of(lambda: load("ucf101", official, size=21))
    assert "3 of 12" in message
    for name, why in list(faults.items())[1:]:
        assert f"{name} ({why})" in message


def test_worker_processes_change_nothing(official: Path):
    damage(official)
    alone = load("ucf101", official, size=21, allow_missing=True)
    (folder,) = kept_folders(official)
    folder.rename(official / "alone")
    together = load("ucf101", official, size=21, allow_missing=True, workers=2)
    assert kept_folders(official) == [folder]
    assert torch.equal(together.frames, alone.frames)
    assert together.videos == alone.videos
    assert together.left_out == alone.left_out


# What is kept


def test_videos_are_decoded_once(official: Path, monkeypatch: pytest.MonkeyPatch):
    told: list[tuple[int, int, str]] = []
    first = load("ucf101", official, size=21, progress=lambda *message: told.append(message))
    assert told == [(n, 12, "decoding (rgb)") for n in range(1, 13)]
    monkeypatch.delattr("video.data._store")
    again = load("ucf101", official, size=21)
    assert torch.equal(again.frames, first.frames)
    assert torch.equal(again.start, first.start)
    assert again.videos == first.videos
    with pytest.raises(NameError):
        load("ucf101", official, size=8)
    file = file_of(official, name_of("Punch", 1))
    file.write_bytes(file.read_bytes() + b"\0")
    with pytest.raises(NameError):
        load("ucf101", official, size=21)
    assert len(kept_folders(official)) == 1


def test_frames_are_hashed_when_touched_and_whenever_that_is_asked_for(official: Path):
    load("ucf101", official, size=21)
    (folder,) = kept_folders(official)
    frames = folder / "frames.bin"
    os.utime(frames)
    load("ucf101", official, size=21)  # hashes them once
    with pytest.MonkeyPatch.context() as patch:
        patch.delattr("video.data.read_meta")
        load("ucf101", official, size=21)
    # What the file system does not tell is found where it is asked for.
    status, content = frames.stat(), frames.read_bytes()
    frames.write_bytes(bytes([content[0] ^ 1]) + content[1:])
    os.utime(frames, ns=(status.st_atime_ns, status.st_mtime_ns))
    load("ucf101", official, size=21)
    assert "frames.bin" in error_of(lambda: fetch("ucf101", official))


# Flow


def test_flow_is_kept_as_frames_are(official: Path, monkeypatch: pytest.MonkeyPatch):
    moved = np.linspace(0, 255, 60 * HEIGHT * WIDTH * 3).astype(np.uint8)
    asked: set[Path] = set()

    def video_flow(file: Path, folder: Path, method: str) -> np.ndarray:
        asked.add(folder)
        length = len([*decode(file)])
        return moved[: length * HEIGHT * WIDTH * 3].reshape(length, HEIGHT, WIDTH, 3)

    monkeypatch.setattr(video.flow, "video_flow", video_flow)
    faults = damage(official)

    def loaded(**changes: str) -> Videos:
        options = {"modality": "flow", **changes}
        return load("ucf101", official, size=21, allow_missing=True, **options)

    videos = loaded()
    assert {each.partition(": ")[0] for each in videos.left_out} == set(faults)
    for each in videos.videos:
        expected = torch.from_numpy(video_flow(file_of(official, each.name), official, "tvl1"))
        assert torch.equal(of_name(videos, each.name), expected.permute(0, 3, 1, 2))
    asked.discard(official)
    assert [folder.name[:17] for folder in asked] == ["ucf101-flow-tvl1-"]
    # Other settings of flow and another method, other folders.
    monkeypatch.setattr(video.flow, "BOUND", 15.0)
    loaded()
    loaded(flow="dis")
    assert len(asked) == 3
    assert len(kept_folders(official, f"flow-{stored_side(21)}")) == 3


# The hash of what was used


def test_the_fingerprint_is_of_videos_and_lists(official: Path):
    first = fingerprint("ucf101", official)
    assert len(first) == 64
    assert fingerprint("ucf101", official) == first
    known = {first}

    def changes() -> None:
        found = fingerprint("ucf101", official)
        assert found not in known
        known.add(found)

    (official / "ucfTrainTestlist" / "trainlist02.txt").write_text("")
    changes()
    file = file_of(official, name_of("Archery", 3))
    content = file.read_bytes()
    file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))  # of the same size
    changes()
    file.rename(file.with_name("v_Archery_g09_c01.avi"))
    changes()
    (official / "UCF-101" / "Punch").rename(official / "Punch")
    changes()


# The embedded stand-in


def test_photographs_are_videos_of_three_motions(tmp_path: Path):
    videos = load(EMBEDDED, tmp_path, size=32)
    assert videos.classes == (
        "PanChina",
        "PanFlower",
        "RotateChina",
        "RotateFlower",
        "ZoomChina",
        "ZoomFlower",
    )
    assert len(videos.of(train=True).videos) == 24
    assert sorted(video.label for video in videos.of(train=False).videos) == sorted([*range(6)] * 2)
    assert {video.group for video in videos.of(train=False).videos} == {1, 2}
    assert {v.group for v in load(EMBEDDED, tmp_path, split=3, size=32).of(False).videos} == {5, 6}
    assert videos.frames.shape[1:] == (3, 36, 48)
    assert 12 <= videos.length.min() < videos.length.max() <= 16
    assert len(videos.frames) == videos.length.sum()
    for each in videos.videos:
        frames = of_name(videos, each.name).float()
        moved = (frames[1:] - frames[:-1]).abs().mean((1, 2, 3))
        assert moved.min() > 1
        assert frames.std() > 20
        # All of the window lies in the picture: outside it would be black.
        assert (frames.sum(1) == 0).float().mean() < 0.02
    assert len(list((tmp_path / "prepared").rglob("*.avi"))) == 36
    assert fingerprint(EMBEDDED, tmp_path) == fingerprint(EMBEDDED, tmp_path)
