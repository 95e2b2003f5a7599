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
        index.json        names and lengths of the videos, those that could not be used
        SHA256SUMS        of both
"""

import contextlib
import functools
import hashlib
import json
import math
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from filelock import FileLock
from PIL import Image
from torch import Tensor

from shared.errors import UserError, first_of, program, suggestion
from shared.experiment.data import (
    SUMS,
    MissingData,
    build_once,
    check_prepared,
    check_sums,
    made_again,
    remembered,
    sha256_of,
    sha256_of_files,
    sha256_of_lines,
    write_sums,
    writing,
)
from shared.experiment.files import write_atomically
from shared.experiment.folders import MOST_NAMED, is_hidden, printable
from shared.notices import Progress
from shared.pixels import mapped_pixels
from video.config import EMBEDDED, FOLDER, LISTS, SPLITS
from video.decoding import decode, fault_of
from video.workers import in_order

# Part of the key of stored frames; to be increased when the same files give other frames.
FORMAT = 1

FILES = ("frames.bin", "index.json")

UCF101, HMDB51 = "ucf101", "hmdb51"
DATASETS = (UCF101, HMDB51)
MODALITIES = ("rgb", "flow")
FLOWS = ("tvl1", "dis")
SHORTEST = 2  # frames of a video that can be used; flow needs two
_NAME = re.compile(r"v_\w+_g(\d+)_c\d+")
_SPLIT = re.compile(r"(.+)_test_split([123])\.txt")  # of HMDB51, a class and a split
_PART_OF = {"1": True, "2": False, "0": None}  # HMDB51: training part, test part, neither

Read = Callable[[Path], Iterable[np.ndarray]]
Resize = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True)
class Layout:
    """The folders of a data set: its classes, its lists, and what to do if files are missing.

    hmdb51: whether names and lists are HMDB51's; UCF-101's otherwise.
    """

    folder: Path
    lists: Path
    remedy: str
    hmdb51: bool = False


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

    Frames are stored as bytes, with their shorter side reduced to ``stored_side(size)`` pixels if
    it has more: 3 h w bytes a frame, 36,864 for 128 x 96 pixels. All of UCF-101 at 128 pixels takes
    215 GB of disk, and need not fit in memory. HMDB51's videos have different widths: the largest
    central part of 4:3, the shape of UCF-101, is kept.

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
        allow_missing: omit videos that are listed and missing, cannot be decoded, have fewer
            than two frames or another size than most; without it one error names them.
        progress: called, while it decodes, with the videos done, their number, and what is done.

    Raises:
        MissingData: the data set is not there.
        UserError: a list is missing or damaged; lists and folders do not fit together; a video of a
            present class cannot be used; the data root cannot be written, or kept frames are
            damaged.
        ValueError: there is no such split, modality, method or size.
    """
    if split not in SPLITS or modality not in MODALITIES or size < 1:
        raise ValueError(f"no split {split}, modality {modality!r} and size {size}")
    if flow not in FLOWS:
        raise ValueError(f"flow is by {' or '.join(FLOWS)}; got {flow!r}")
    layout = layout_of(dataset, data_root)
    classes = _present_classes(dataset, layout)
    listed = _listed_videos(layout, split, classes)
    files = _files(layout, classes)
    unusable = _missing(layout, listed, files, classes)
    _tolerate(layout, unusable, len(listed), allow_missing)
    side, prepared = stored_side(size), data_root / "prepared" / "video"
    key = [_sha256_of_videos(dataset, data_root, layout, files), str(FORMAT)]
    key += _settings(modality, flow)
    folder = prepared / f"{dataset}-{modality}-{side}-{sha256_of_lines(key)[:10]}"
    images = flow_folder(data_root, dataset, flow)
    resize = functools.partial(_four_by_three if layout.hmdb51 else _resized, side=side)

    def build(part: Path) -> None:
        with writing(folder):
            read, left_out = _rgb_or_flow(
                modality, flow, images, list(files.values()), workers, progress
            )
            stored = functools.partial(_stored_frames, read, resize)
            _store(part, files, stored, left_out, modality, workers, progress)

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
        missing = _missing(layout, listed, files, classes)
        _tolerate(layout, missing, len(listed), allow_missing=False)
        counts = Counter(video.label for video in listed.values())
        if unlisted := [
            class_name for label, class_name in enumerate(classes) if not counts[label]
        ]:
            raise UserError(f"{layout.lists}: split {split} lists no video of {unlisted[0]}")
    check_prepared(data_root / "prepared" / "video", f"{name}-*")
    counted = ", ".join(f"{name} {counts[label]}" for label, name in enumerate(classes))
    return f"{len(listed)} videos of {len(classes)} of {len(_numbers(layout))} classes: {counted}"


def flow_folder(data_root: Path, dataset: str, method: str) -> Path:
    """Where the images of a data set's flow are kept."""
    name = f"{dataset}-flow" if method == "tvl1" else f"{dataset}-flow-{method}"
    return data_root / "prepared" / "video" / name


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
        )
    if dataset == EMBEDDED:
        root = data_root / "prepared" / "video" / f"{EMBEDDED}-{FORMAT}"

        def build(part: Path) -> None:
            with writing(root):
                from video import synthetic  # PyAV and scikit-learn take a second

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
    )


def _present_classes(dataset: str, layout: Layout) -> tuple[str, ...]:
    """The classes that have a folder, in the order of their numbers."""
    command = f"{program()} data video" + (" --dataset hmdb51" if layout.hmdb51 else "")
    how = f"run {command} to see which files it needs"
    if not layout.folder.is_dir():
        raise MissingData(dataset, layout.folder, command, how)
    numbers = _numbers(layout)
    for folder in sorted(layout.folder.iterdir()):
        visible = not is_hidden(folder.name)
        if visible and folder.name not in numbers and _videos_in(folder, layout):
            near = suggestion(folder.name, sorted(numbers), "classes are")
            where = layout.lists if layout.hmdb51 else layout.lists / "classInd.txt"
            raise UserError(
                f"{printable(folder)}: holds videos and is not a class of {where}{near}; "
                f"rename the folder"
            )
    present = [name for name in numbers if (layout.folder / name).is_dir()]
    if not present:
        raise MissingData(dataset, layout.folder, command, how)
    return tuple(sorted(present, key=numbers.__getitem__))


def _numbers(layout: Layout) -> dict[str, int]:
    """The number of each class: UCF-101's official one, of HMDB51 its place in the alphabet."""
    if layout.hmdb51:
        files = sorted(layout.lists.glob("*.txt")) if layout.lists.is_dir() else []
        names = sorted({match[1] for file in files if (match := _SPLIT.fullmatch(file.name))})
        if not names:
            raise UserError(f"{layout.lists}: no <class>_test_split1.txt; {layout.remedy}")
        return {name: number for number, name in enumerate(names)}
    numbers: dict[str, int] = {}
    for location, line in _lines(layout.lists / "classInd.txt", layout):
        number, _, name = line.replace("\t", " ").partition(" ")
        name = name.strip()
        if not number.isdecimal() or not name:
            raise UserError(
                f"{location}: {line!r} is not a number and the name of a class; {layout.remedy}"
            )
        if name in numbers or int(number) in numbers.values():
            raise UserError(f"{location}: {line!r} is listed twice; {layout.remedy}")
        numbers[name] = int(number)
    return numbers


def _listed_videos(layout: Layout, split: int, classes: tuple[str, ...]) -> dict[str, Video]:
    """The videos of present classes that the lists of a split have, by name."""
    return (_listed_in_hmdb51 if layout.hmdb51 else _listed_in_ucf101)(layout, split, classes)


def _listed_in_hmdb51(layout: Layout, split: int, classes: tuple[str, ...]) -> dict[str, Video]:
    """Videos belong to one group if their names are equal up to that of the class."""
    listed: dict[str, Video] = {}
    groups: dict[str, int] = {}
    for label, name in enumerate(classes):
        for location, line in _lines(layout.lists / f"{name}_test_split{split}.txt", layout):
            file, _, part = line.rpartition(" ")
            video = re.sub(r"\.avi$", "", file.strip(), flags=re.IGNORECASE)
            if part not in _PART_OF or not video or video in listed:
                why = "is listed twice" if video in listed else "is not a video and 0, 1 or 2"
                raise UserError(f"{location}: {line!r} {why}; {layout.remedy}")
            group = groups.setdefault(video.rpartition(f"_{name}_")[0] or video, len(groups))
            if (train := _PART_OF[part]) is not None:
                listed[video] = Video(video, label, group, train)
    return listed


def _listed_in_ucf101(layout: Layout, split: int, classes: tuple[str, ...]) -> dict[str, Video]:
    """Folders before those of the classes are ignored: ``UCF-101/Punch/v_Punch_g01_c01.avi``."""
    labels = {name: label for label, name in enumerate(classes)}
    numbers = _numbers(layout)
    listed: dict[str, Video] = {}
    for train in (True, False):
        file = layout.lists / f"{'train' if train else 'test'}list{split:02d}.txt"
        for location, line in _lines(file, layout):
            # Training lists add the official number of the class; classInd.txt has it, too.
            path = re.sub(r"\s+\d+$", "", line).replace("\\", "/")
            folder, _, base = path.rpartition("/")
            folder = folder.rpartition("/")[2]
            name = re.sub(r"\.avi$", "", base, flags=re.IGNORECASE)
            matched = _NAME.fullmatch(name)
            if not folder or not matched or name in listed:
                why = "is listed twice" if name in listed else "is not <class>/v_*_g01_c01.avi"
                raise UserError(f"{location}: {line!r} {why}; {layout.remedy}")
            if folder not in numbers:
                near = suggestion(folder, sorted(numbers), "classes are")
                raise UserError(f"{location}: {folder!r} is not a class of classInd.txt{near}")
            if folder in labels:
                listed[name] = Video(name, labels[folder], int(matched[1]), train)
    return listed


def _lines(file: Path, layout: Layout) -> Iterator[tuple[str, str]]:
    """The lines that are not blank, each with its place for messages."""
    try:
        text = file.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise UserError(f"{file}: missing; {layout.remedy}") from None
    except UnicodeDecodeError:
        raise UserError(f"{file}: is not text in UTF-8; {layout.remedy}") from None
    except OSError as error:
        raise UserError(f"{file}: cannot be read ({error.strerror}); {layout.remedy}") from None
    for number, line in enumerate(text.splitlines(), start=1):
        if line.strip():
            yield f"{file}, line {number}", line.strip()


def _files(layout: Layout, classes: tuple[str, ...]) -> dict[str, Path]:
    """All videos of some classes by name, in the order in which they are kept."""
    files: dict[str, Path] = {}
    for file in (path for name in classes for path in _videos_in(layout.folder / name, layout)):
        if file.stem in files:
            raise UserError(f"{printable(file)}: {files[file.stem]} has the same name; keep one")
        files[file.stem] = file
    return files


def _videos_in(folder: Path, layout: Layout) -> list[Path]:
    """The readable videos of a folder itself, in the order of their names, without hidden ones."""
    if not folder.is_dir():
        return []
    try:
        return sorted(
            file
            for file in folder.iterdir()
            if file.suffix.lower() == ".avi"
            if not file.name.startswith(".") and (layout.hmdb51 or file.name.startswith("v_"))
            if file.is_file() and os.access(file, os.R_OK)
        )
    except OSError as error:
        raise UserError(f"{printable(folder)}: cannot be read ({error.strerror})") from None


def _missing(
    layout: Layout,
    listed: Mapping[str, Video],
    files: Mapping[str, Path],
    classes: tuple[str, ...],
) -> dict[str, str]:
    """The listed videos that are not in the folder of their class, or cannot be read, and why."""
    missing = {}
    for name, video in listed.items():
        folder = layout.folder / classes[video.label]
        if name not in files or files[name].parent != folder:
            exists = os.path.lexists(folder / f"{name}.avi")
            missing[name] = "cannot be read" if exists else "missing"
    return missing


def _tolerate(layout: Layout, unusable: dict[str, str], listed: int, allow_missing: bool) -> None:
    if unusable and not allow_missing:
        named = [f"{name} ({why})" for name, why in unusable.items()]
        text = f"{len(unusable)} of {listed} videos cannot be used: {first_of(named, MOST_NAMED)}"
        remedy = "restore them, or continue without them: --allow-missing"
        raise UserError(f"{layout.folder}: {text}; {remedy}")


def _sha256_of_videos(dataset: str, data_root: Path, layout: Layout, files: dict[str, Path]) -> str:
    """SHA-256 over paths and contents, read again when the state of a file has changed."""
    paths = [file.relative_to(layout.folder.parent).as_posix() for file in files.values()]
    stamp = data_root / "prepared" / "video" / f"{dataset}.sha256"
    return remembered(
        stamp,
        files.values(),
        lambda: sha256_of_lines([*paths, sha256_of_files(files.values())]),
    )


# Decoding


def _stored_frames(read: Read, resize: Resize, file: Path) -> np.ndarray | str:
    """The frames of a video as they are kept, (T, 3, h, w) uint8, or why it cannot be used."""
    try:
        frames = [resize(frame).transpose(2, 0, 1) for frame in read(file)]
    except UserError as error:
        return fault_of(error, file)
    if fault := too_short(len(frames)):
        return fault
    return np.ascontiguousarray(np.stack(frames))


def too_short(frames: int) -> str | None:
    """Why a video with this number of frames is too short; None if it is not."""
    return f"{frames} frames, fewer than {SHORTEST}" if frames < SHORTEST else None


def _resized(frame: np.ndarray, side: int) -> np.ndarray:
    """A frame (H, W, 3) whose shorter side has at most ``side`` pixels, without aliasing."""
    height, width, _ = frame.shape
    shorter = min(height, width)
    if shorter <= side:
        return frame
    size = round(width * side / shorter), round(height * side / shorter)
    return np.asarray(Image.fromarray(frame).resize(size, Image.Resampling.BILINEAR))


def _four_by_three(frame: np.ndarray, side: int) -> np.ndarray:
    """The largest central part of 4:3 of a frame (H, W, 3), its shorter side ``side`` pixels."""
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


def _settings(modality: str, method: str) -> list[str]:
    """What else decides the frames of a modality."""
    if modality == "rgb":
        return []
    from video import flow

    return [json.dumps([flow.PARAMETERS[method], flow.BOUND, flow.FILLER, flow.QUALITY])]


def _rgb_or_flow(
    modality: str,
    method: str,
    images: Path,
    files: Sequence[Path],
    workers: int,
    progress: Progress | None,
) -> tuple[Read, dict[str, str]]:
    """What gives the frames of a video, and why some have none: for flow, it is prepared first."""
    if modality == "rgb":
        return decode, {}
    from video.flow import prepare_flow

    faults = zip(files, in_order(_fault, files, workers), strict=True)
    unusable = {file.stem: fault for file, fault in faults if fault is not None}
    usable = [file for file in files if file.stem not in unusable]
    # Frames of another size are kept in another folder, under another lock, but have this flow.
    with FileLock(images.with_name(f".{images.name}.lock")):
        prepare_flow(usable, images, workers, progress, method)
    return functools.partial(_flow_of, images), unusable


def _fault(file: Path) -> str | None:
    """Why a video cannot be used; None: it can."""
    try:
        frames = sum(1 for _ in decode(file))
    except UserError as error:
        return fault_of(error, file)
    return too_short(frames)


def _flow_of(images: Path, file: Path) -> np.ndarray:
    from video.flow import read_flow

    return read_flow(images / f"{file.stem}.zip")


@dataclass
class _VideosOfOneSize:
    """The videos of one size that are written to a file."""

    file: Path
    stream: BinaryIO
    names: list[str] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)
    digest: Any = field(default_factory=hashlib.sha256)

    def add(self, name: str, frames: np.ndarray) -> None:
        self.stream.write(frames.data)
        self.digest.update(frames.data)
        self.names.append(name)
        self.lengths.append(len(frames))


def _store(
    part: Path,
    all_files: Mapping[str, Path],
    stored_frames: Callable[[Path], np.ndarray | str],
    left_out: dict[str, str],
    modality: str,
    workers: int,
    progress: Progress | None,
) -> None:
    """Write the frames of all videos that can be used, of the most frequent size, and the index."""
    files = [file for name, file in all_files.items() if name not in left_out]
    stored = in_order(stored_frames, files, workers)
    # By (3, h, w); the first video may be the odd one.
    sizes: dict[tuple[int, ...], _VideosOfOneSize] = {}
    with contextlib.ExitStack() as stack:
        for done, (file, frames) in enumerate(zip(files, stored, strict=True), start=1):
            if isinstance(frames, str):
                left_out[file.stem] = frames
            else:
                same_size = sizes.get(frames.shape[1:])
                if same_size is None:
                    target = part / f"{len(sizes)}.bin"
                    same_size = _VideosOfOneSize(target, stack.enter_context(target.open("wb")))
                    sizes[frames.shape[1:]] = same_size
                same_size.add(file.stem, frames)
            if progress is not None:
                progress(done, len(files), f"decoding ({modality})")
    if not sizes:
        first = ": ".join(next(iter(left_out.items())))
        raise UserError(f"{part.parent}: would hold no video, none can be used: {first}")
    shape, same_size = max(sizes.items(), key=lambda item: len(item[1].names))
    for (_, height, width), other in sizes.items():
        if other is not same_size:
            why = f"frames of {width} x {height} pixels, most others {shape[2]} x {shape[1]}"
            left_out |= dict.fromkeys(other.names, why)
            other.file.unlink()
    same_size.file.rename(part / "frames.bin")
    index = {
        "names": same_size.names,
        "lengths": same_size.lengths,
        "shape": shape,
        "left_out": {name: left_out[name] for name in all_files if name in left_out},
    }
    write_atomically(part / "index.json", json.dumps(index) + "\n")
    sums = {
        "frames.bin": same_size.digest.hexdigest(),
        "index.json": sha256_of(part / "index.json"),
    }
    write_sums(part, sums)


def _read_frames(folder: Path) -> tuple[Tensor, dict[str, tuple[int, int]], dict[str, str]]:
    """The stored frames, start and length of each video, and why others are left out."""
    file = folder / "frames.bin"

    def fault(name: str, text: str) -> UserError:
        return UserError(f"{folder / name}: {text}; delete {folder}, to have it made again")

    try:
        index = json.loads((folder / "index.json").read_text(encoding="utf-8"))
        names, lengths, left_out = (index[name] for name in ("names", "lengths", "left_out"))
        shape = (sum(lengths), *index["shape"])
    except (OSError, ValueError, KeyError, TypeError):
        raise fault("index.json", "damaged") from None
    size = file.stat().st_size if file.is_file() else 0
    if size != (expected := math.prod(shape)):
        raise fault("frames.bin", f"{size} bytes where index.json says {expected}")

    def intact() -> str:
        check_sums(folder, made_again(folder), FILES)
        return "intact"

    remembered(folder / ".verified", [folder / name for name in (*FILES, SUMS)], intact)
    starts = np.cumsum([0, *lengths[:-1]]).tolist()
    places = dict(zip(names, zip(starts, lengths, strict=True), strict=True))
    return mapped_pixels(file, shape), places, left_out
