"""Videos of UCF-101 and HMDB51: index and splits, and decoded frames kept on disk.

Shapes: n videos, F frames of all of them together, T of one; H x W pixels of a file, h x w as kept.

Below the data root are the unpacked archives, with all or some of the 101 and 51 classes:

    UCF-101/<class>/v_<class>_g<group>_c<clip>.avi
    ucfTrainTestlist/     classInd.txt, trainlist01.txt, testlist01.txt; 02 and 03 alike

    hmdb51_org/<class>/*.avi
    testTrainMulti_7030_splits/<class>_test_split1.txt    of each class and split: a video and 1
                                                          (train), 2 (test) or 0 (neither) a line

What is decoded is kept there, too, in a folder for everything that decides it:

    prepared/video/<dataset>-<modality>-<side>-<hash>/
        frames.bin        F frames in order, (3, h, w) bytes each
        meta.json         names and lengths of the videos, those that could not be used
        SHA256SUMS        of both
"""

import functools
import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from shared.errors import UserError, first_of, program
from shared.experiment.data import (
    META,
    SUMS,
    MissingData,
    build_once,
    cached_until_changed,
    check_prepared,
    read_meta,
    sha256_of_files,
    sha256_of_lines,
    write_meta,
    writing,
)
from shared.experiment.folders import MOST_NAMED, printable
from shared.notices import Progress
from shared.pixels import mapped_pixels
from video.config import EMBEDDED, FOLDER, LISTS, SPLITS
from video.decoding import decode, fault_of
from video.workers import in_order

# Part of the key of stored frames; to be increased when the same files give other frames.
FORMAT = 2

FILES = ("frames.bin", META)

UCF101, HMDB51 = "ucf101", "hmdb51"
DATASETS = (UCF101, HMDB51)
MODALITIES = ("rgb", "flow")
FLOWS = ("tvl1", "dis")
SHORTEST = 2  # frames of a video that can be used; flow needs two
UCF101_HEIGHT = 240  # pixels of its frames, of 4:3, which are not enlarged
# A line of UCF-101's lists. Folders before that of the class are ignored; training lists add the
# official number of the class, which classInd.txt has, too.
_LINE = re.compile(r"(?:.*/)?([^/]+)/(v_\w+_g(\d+)_c\d+)(?:\.avi)?(?:\s+\d+)?", re.IGNORECASE)
_SPLIT = re.compile(r"(.+)_test_split([123])\.txt")  # of HMDB51, a class and a split
_LINE_OF_HMDB51 = re.compile(r"(.+?)(?:\.avi)?\s+([012])", re.IGNORECASE)
_PART_OF = {"1": True, "2": False, "0": None}  # HMDB51: training part, test part, neither

Read = Callable[[Path], Iterable[np.ndarray]]


@dataclass(frozen=True)
class Layout:
    """The folders of a data set: its classes, its lists, and what to do if files are missing.

    hmdb51: whether names and lists are HMDB51's; UCF-101's otherwise. height: pixels of its frames,
    where all have as many and 4:3 of them.
    """

    folder: Path
    lists: Path
    remedy: str
    hmdb51: bool = False
    height: int | None = UCF101_HEIGHT


@dataclass(frozen=True)
class Video:
    """A video of a split: label is its place among the classes that are present."""

    name: str
    label: int
    group: int
    train: bool


@dataclass(frozen=True)
class Videos:
    """Videos of a split, or of a part of one, in memory or memory-mapped.

    classes: those that are present, in the official order. frames: (F, 3, h, w) uint8, not to be
    written to; of flow x, y and a third channel, see :mod:`video.flow`. start, length: (n,) int64,
    where the frames of each video lie. left_out: "name: why" of each video that is missing, cannot
    be decoded or is too short. modality: "rgb" or "flow", what the frames are.
    """

    videos: tuple[Video, ...]
    classes: tuple[str, ...]
    frames: Tensor
    start: Tensor
    length: Tensor
    left_out: tuple[str, ...] = ()
    modality: str = "rgb"

    def of(self, train: bool) -> "Videos":
        """The training or the test videos; they share the frames of all."""
        return part_of(self, [i for i, video in enumerate(self.videos) if video.train == train])

    def every(self, stride: int) -> "Videos":
        """Every ``stride``-th video, from the first on; frames are shared."""
        return part_of(self, range(0, len(self.videos), stride))

    def check(self, modality: str) -> None:
        """Refuse, by a ValueError, frames of another modality than a configuration's."""
        if self.modality != modality:
            remedy = "read them with flow=" if modality == "flow" else "read them without flow="
            raise ValueError(
                f"modality is {modality!r}, these videos are {self.modality!r}; set modality, or "
                f"{remedy}"
            )


def part_of(videos: Videos, places: Iterable[int]) -> Videos:
    """The videos at some places; they share the frames of all."""
    index = list(places)
    chosen = tuple(videos.videos[place] for place in index)
    return replace(videos, videos=chosen, start=videos.start[index], length=videos.length[index])


def load(
    dataset: str,
    data_root: Path,
    *,
    split: int = 1,
    modality: str = "rgb",
    flow: str = "tvl1",
    size: int,
    workers: int = 1,
    allow_missing: bool = False,
    progress: Progress | None = None,
) -> Videos:
    """A split of a data set, decoded on first use and memory-mapped from then on.

    Frames are stored as bytes, the largest central part of 4:3, the shape of UCF-101, with its
    shorter side reduced to ``stored_side(size)`` pixels if a file of UCF-101 has more: 3 h w bytes
    a frame, 36,864 for 128 x 96 pixels. All of UCF-101 at 128 pixels takes 215 GB of disk, and need
    not fit in memory.

    Videos are decoded once for all splits, by one process for all; an interrupted decoding starts
    again. Frames are checked against their checksum when first opened, whenever size or time of
    modification of their file has changed, and by :func:`fetch`.

    Args:
        dataset: ``"ucf101"``, ``"hmdb51"``, or ``"photographs"``: pan, zoom and rotation over the
            two pictures of scikit-learn, written as videos on first use.
        data_root: the folder that holds the data sets; ``prepared`` is made in it.
        split: of the three official ones.
        modality: "rgb" or "flow".
        flow: "tvl1" or "dis", the method; see :mod:`video.flow`.
        size: pixels of a clip's side.
        workers: processes that decode.
        allow_missing: omit videos that are listed and missing, cannot be decoded or have fewer
            than two frames; without it one error names them.
        progress: called, while it decodes, with the videos done, their number, and what is done.

    Raises:
        MissingData: the data set is not there.
        UserError: a list is missing or damaged; a video of a present class cannot be used; the data
            root cannot be written, or kept frames are damaged.
        ValueError: there is no such split, modality, method or size.
    """
    if split not in SPLITS or modality not in MODALITIES or size < 1:
        raise ValueError(f"no split {split}, modality {modality!r} and size {size}")
    layout = layout_of(dataset, data_root)
    classes = _present_classes(dataset, layout)
    listed = _listed_videos(layout, split, classes)
    files = _files(layout, classes)
    unusable = {name: "missing" for name in listed if name not in files}
    _tolerate(layout, unusable, len(listed), allow_missing)
    side, prepared = stored_side(size), data_root / "prepared" / "video"
    key = [_sha256_of_videos(dataset, data_root, layout, files), str(FORMAT)]
    read: Read = decode
    if modality == "flow":
        from video.flow import settings_of, video_flow

        key.append(json.dumps(settings_of(flow)))
        flows = prepared / f"{dataset}-flow-{flow}-{sha256_of_lines(key)[:10]}"
        read = functools.partial(video_flow, folder=flows, method=flow)
    folder = prepared / f"{dataset}-{modality}-{side}-{sha256_of_lines(key)[:10]}"
    stored = functools.partial(_stored_frames, read, min(side, layout.height or side))

    def build(part: Path) -> None:
        with writing(folder):
            _store(part, files, stored, modality, workers, progress)

    build_once(folder, build, (SUMS,))
    frames, places, damaged = _read_frames(folder)
    unusable |= {name: why for name, why in damaged.items() if name in listed}
    _tolerate(layout, unusable, len(listed), allow_missing)
    names = [name for name in files if name in listed and name in places]
    used = {listed[name].label for name in names}
    if lost := [name for label, name in enumerate(classes) if label not in used]:
        raise UserError(f"{layout.lists}: split {split} has no video of {lost[0]} that can be used")
    start, length = torch.tensor([places[name] for name in names]).unbind(1)
    return Videos(
        tuple(listed[name] for name in names),
        classes,
        frames,
        start,
        length,
        tuple(f"{name}: {why}" for name, why in unusable.items()),
        modality,
    )


def fingerprint(dataset: str, data_root: Path) -> str:
    """SHA-256 over names and contents of the lists and of the videos of all present classes.

    Videos are read once; a file below ``prepared`` keeps their hash until a size or time of
    modification has changed.
    """
    layout = layout_of(dataset, data_root)
    files = _files(layout, _present_classes(dataset, layout))
    lists = sha256_of_files(layout.lists.glob("*.txt"))
    return sha256_of_lines([lists, _sha256_of_videos(dataset, data_root, layout, files)])


def fetch(name: str, data_root: Path) -> str:
    """Match the lists of all splits against the files; neither set can be downloaded reliably.

    Whether the videos can be decoded shows when :func:`load` does so; what it has kept is compared
    with its checksums here, 1 s for each GB.

    Returns:
        How many videos of each class the lists and the folders have.
    """
    layout = layout_of(name, data_root)
    try:
        classes = _present_classes(name, layout)
    except MissingData:
        raise UserError(f"{data_root}: {name} is missing; {layout.remedy}") from None
    files = _files(layout, classes)
    for split in SPLITS:
        listed = _listed_videos(layout, split, classes)
        missing = {name: "missing" for name in listed if name not in files}
        _tolerate(layout, missing, len(listed), allow_missing=False)
        counts = Counter(video.label for video in listed.values())
        if unlisted := [
            class_name for label, class_name in enumerate(classes) if not counts[label]
        ]:
            raise UserError(f"{layout.lists}: split {split} lists no video of {unlisted[0]}")
    check_prepared(data_root / "prepared" / "video", f"{name}-*")
    counted = ", ".join(f"{name} {counts[label]}" for label, name in enumerate(classes))
    return f"{len(listed)} videos of {len(classes)} of {len(_numbers(layout))} classes: {counted}"


def stored_side(size: int) -> int:
    """Pixels of the shorter side of kept frames, for clips of ``size`` pixels."""
    return math.ceil(size * 8 / 7)


# The layout


def layout_of(dataset: str, data_root: Path) -> Layout:
    """Where a data set is or has to be put; the embedded one is made."""
    root = data_root
    if dataset == HMDB51:
        folder, lists = "hmdb51_org", "testTrainMulti_7030_splits"
        return Layout(
            root / folder,
            root / lists,
            f"HMDB51 has to be put there: get hmdb51_org.rar and test_train_splits.rar from its "
            f"page at serre-lab.clps.brown.edu, unpack the first, and what it holds, to "
            f"{folder}/<class>/*.avi, and the second to {lists}/*.txt",
            hmdb51=True,
            height=None,
        )
    height = UCF101_HEIGHT
    if dataset == EMBEDDED:
        from video import synthetic  # PyAV and scikit-learn take a second

        height = synthetic.HEIGHT
        root = data_root / "prepared" / "video" / f"{EMBEDDED}-{FORMAT}"

        def build(part: Path) -> None:
            with writing(root):
                synthetic.write(part)

        build_once(root, build, (f"{LISTS}/classInd.txt",))
    elif dataset != UCF101:
        known = ", ".join((*DATASETS, EMBEDDED))
        raise UserError(f"unknown data set {dataset!r}; known are {known}")
    return Layout(
        root / FOLDER,
        root / LISTS,
        f"UCF-101 has to be put there: unpack UCF101.rar to {FOLDER}/<class>/v_*.avi, all classes "
        f"or some, and the archive of its splits to {LISTS}/*.txt",
        height=height,
    )


def _present_classes(dataset: str, layout: Layout) -> tuple[str, ...]:
    """The classes that have a folder, in the order of their numbers."""
    numbers = _numbers(layout) if layout.folder.is_dir() else {}
    present = [name for name in numbers if (layout.folder / name).is_dir()]
    if not present:
        command = f"{program()} data video" + (" --dataset hmdb51" if layout.hmdb51 else "")
        how = f"run {command} to see which files it needs"
        raise MissingData(dataset, layout.folder, command, how)
    return tuple(sorted(present, key=numbers.__getitem__))


def _numbers(layout: Layout) -> dict[str, int]:
    """The number of each class: UCF-101's official one, of HMDB51 its place in the alphabet."""
    if layout.hmdb51:
        matches = (_SPLIT.fullmatch(file.name) for file in layout.lists.glob("*.txt"))
        names = sorted({match[1] for match in matches if match})
        if not names:
            raise UserError(f"{layout.lists}: no <class>_test_split1.txt; {layout.remedy}")
        return {name: number for number, name in enumerate(names)}
    lines = _lines(layout.lists / "classInd.txt", re.compile(r"(\d+)\s+(.+)"), layout)
    return {line[2]: int(line[1]) for line in lines}


def _listed_videos(layout: Layout, split: int, classes: tuple[str, ...]) -> dict[str, Video]:
    """The videos of present classes that the lists of a split have, by name."""
    listed: dict[str, Video] = {}
    if layout.hmdb51:
        # Videos belong to one group if their names are equal up to that of the class.
        groups: dict[str, int] = {}
        for label, name in enumerate(classes):
            file = layout.lists / f"{name}_test_split{split}.txt"
            for line in _lines(file, _LINE_OF_HMDB51, layout):
                group = groups.setdefault(
                    line[1].rpartition(f"_{name}_")[0] or line[1], len(groups)
                )
                if (train := _PART_OF[line[2]]) is not None:
                    listed[line[1]] = Video(line[1], label, group, train)
        return listed
    labels = {name: label for label, name in enumerate(classes)}
    for train in (True, False):
        file = layout.lists / f"{'train' if train else 'test'}list{split:02d}.txt"
        for line in _lines(file, _LINE, layout):
            if line[1] in labels:
                listed[line[2]] = Video(line[2], labels[line[1]], int(line[3]), train)
    return listed


def _lines(file: Path, pattern: re.Pattern[str], layout: Layout) -> list[re.Match[str]]:
    """The lines of a list that are not blank, each of which has to match."""
    try:
        text = file.read_text(encoding="utf-8-sig").replace("\\", "/")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{file}: cannot be read ({error}); {layout.remedy}") from None
    matches = []
    for number, line in enumerate(text.splitlines(), start=1):
        if line.strip():
            if (match := pattern.fullmatch(line.strip())) is None:
                raise UserError(f"{file}, line {number}: {line!r} is damaged; {layout.remedy}")
            matches.append(match)
    return matches


def _files(layout: Layout, classes: tuple[str, ...]) -> dict[str, Path]:
    """All videos of some classes by name, in the order in which they are kept."""
    pattern = "[!.]*" if layout.hmdb51 else "v_*"
    return {
        file.stem: file
        for name in classes
        for file in sorted((layout.folder / name).glob(pattern))
        if file.suffix.lower() == ".avi" and file.is_file()
    }


def _tolerate(layout: Layout, unusable: dict[str, str], listed: int, allow_missing: bool) -> None:
    if unusable and not allow_missing:
        named = [f"{printable(name)} ({why})" for name, why in unusable.items()]
        text = f"{len(unusable)} of {listed} videos cannot be used: {first_of(named, MOST_NAMED)}"
        remedy = "restore them, or continue without them: --allow-missing"
        raise UserError(f"{layout.folder}: {text}; {remedy}")


def _sha256_of_videos(dataset: str, data_root: Path, layout: Layout, files: dict[str, Path]) -> str:
    """SHA-256 over paths and contents, read again when the state of a file has changed."""
    paths = [file.relative_to(layout.folder.parent).as_posix() for file in files.values()]
    stamp = data_root / "prepared" / "video" / f"{dataset}.sha256"
    return cached_until_changed(
        stamp,
        files.values(),
        lambda: sha256_of_lines([*paths, sha256_of_files(files.values())]),
    )


# Decoding


def _stored_frames(read: Read, side: int, file: Path) -> np.ndarray | str:
    """The frames of a video as they are kept, (T, 3, h, w) uint8, or why it cannot be used."""
    try:
        frames = [_resized(frame, side).transpose(2, 0, 1) for frame in read(file)]
    except UserError as error:
        return fault_of(error, file)
    return too_short(len(frames)) or np.ascontiguousarray(np.stack(frames))


def too_short(frames: int) -> str | None:
    """Why a video with this number of frames is too short; None if it is not."""
    return f"{frames} frames, fewer than {SHORTEST}" if frames < SHORTEST else None


def _resized(frame: np.ndarray, side: int) -> np.ndarray:
    """The largest central part of 4:3 of a frame (H, W, 3), its height ``side``, not aliased."""
    height, width, _ = frame.shape
    high, wide = min(height, width * 3 / 4), min(width, height * 4 / 3)
    left, top = (width - wide) / 2, (height - high) / 2
    image = Image.fromarray(frame).resize(
        (round(side * 4 / 3), side),
        Image.Resampling.BILINEAR,
        box=(left, top, left + wide, top + high),
    )
    return np.asarray(image)


# What is kept


def _store(
    part: Path,
    files: Mapping[str, Path],
    stored_frames: Callable[[Path], np.ndarray | str],
    modality: str,
    workers: int,
    progress: Progress | None,
) -> None:
    """Write the frames of all videos that can be used, and which they are."""
    lengths: dict[str, int] = {}
    left_out: dict[str, str] = {}
    shape: tuple[int, ...] = ()
    every = in_order(stored_frames, list(files.values()), workers)
    with (part / "frames.bin").open("wb") as stream:
        for done, (name, frames) in enumerate(zip(files, every, strict=True), start=1):
            if isinstance(frames, str):
                left_out[name] = frames
            else:
                stream.write(frames.data)
                lengths[name], shape = len(frames), frames.shape[1:]
            if progress is not None:
                progress(done, len(files), f"decoding ({modality})")
    if not lengths:
        first = ": ".join(next(iter(left_out.items())))
        raise UserError(f"{part.parent}: would hold no video, none can be used: {first}")
    write_meta(part, {"lengths": lengths, "shape": shape, "left_out": left_out}, FILES)


def _read_frames(folder: Path) -> tuple[Tensor, dict[str, tuple[int, int]], dict[str, str]]:
    """The stored frames, start and length of each video, and why others are left out."""

    def intact() -> str:
        read_meta(folder, FILES)
        return "intact"

    cached_until_changed(folder / ".verified", [folder / name for name in (*FILES, SUMS)], intact)
    meta = json.loads((folder / META).read_text(encoding="utf-8"))
    lengths = meta["lengths"]
    starts = np.cumsum([0, *lengths.values()]).tolist()
    places = {name: (starts[n], lengths[name]) for n, name in enumerate(lengths)}
    return (
        mapped_pixels(folder / "frames.bin", (starts[-1], *meta["shape"])),
        places,
        meta["left_out"],
    )
