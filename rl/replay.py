"""The replay buffer: single frames, which are stacked and cropped when batches are drawn.

Shapes: F frames, T transitions, B of a batch, K frames of a stack, S pixels of a frame, C of a
crop, A dimensions of an action. An episode of n transitions has n + 1 frames, each stored once.

    frames.bin      all frames in order, (3, S, S) bytes each
    replay.json     settings that the frames depend on

A frame is written to the file as soon as it is added. On the CPU batches are read from the
memory-mapped file, which the operating system caches if there is room. On an accelerator with
room for all frames a tensor holds them as well. Storing and resuming are therefore the same on
every device.

The file is append-only. A checksum for every ``CHUNK`` frames is part of the state, and so of the
checkpoint, which is written after the frames have reached the disk, so that the two cannot
disagree. Frames in the file beyond the checkpoint, as after a kill, are cut off and added again.
"""

import contextlib
import io
import json
import os
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from shared.errors import UserError
from shared.experiment.data import writing
from shared.experiment.files import write_atomically

CHUNK = 500  # frames under one checksum, 15 MB at 100 pixels


@dataclass(frozen=True)
class Draw:
    """Which transitions form a batch, and where they are cropped.

    index: (B,) int64. offsets: (3, B, 2) int64, the upper left corners (y, x), 0 to S - C, of the
    crops of observation, next observation and positive.
    """

    index: Tensor
    offsets: Tensor


@dataclass(frozen=True)
class Batch:
    """A batch of transitions.

    observation, next_observation, positive: (B, 3K, C, C) uint8, oldest frame first; the positive
    is another crop of the observation. action: (B, A) float32. reward: (B,) float32. terminated:
    (B,) float32, 1 where the episode ended other than by its time limit, so that no state follows.
    """

    observation: Tensor
    next_observation: Tensor
    positive: Tensor
    action: Tensor
    reward: Tensor
    terminated: Tensor


def gather(
    frames: Tensor, index: Tensor, first: Tensor, offsets: Tensor, *, stack: int, crop: int
) -> Tensor:
    """Cropped stacks of the frames ``index - K + 1`` to ``index``: (B, 3K, C, C) uint8.

    Before an episode's first frame that frame is repeated, as in the stack after a reset. The
    frames of a stack share one crop window. All tensors are on one device, with which nothing here
    synchronises.

    frames: (F, 3, S, S) uint8, contiguous. index: (B,) int64, the newest frame of each stack.
    first: (B,) int64, the first frame of its episode. offsets: (B, 2) int64, upper left corners (y,
    x), 0 to S - C; not checked.
    """
    channels, size = frames.shape[1:3]

    def count(start: int, stop: int) -> Tensor:
        return torch.arange(start, stop, device=index.device)

    frame = torch.maximum(index[:, None] + count(1 - stack, 1), first[:, None])
    plane = frame[:, :, None] * channels + count(0, channels)
    y, x = (offsets[:, axis, None, None, None] for axis in (0, 1))
    begin = (plane[..., None] * size + y + count(0, crop)) * size + x
    # A view of all windows of C bytes, each a row of a crop. Selecting from it copies row by row,
    # several times faster than indexing by frame and corner, which copies byte by byte.
    rows = frames.view(-1).unfold(0, crop, 1)
    return rows.index_select(0, begin.flatten()).view(len(index), stack * channels, crop, crop)


class Replay:
    """All transitions of a run, to draw batches from; nothing is ever overwritten.

    Its state for checkpoints holds everything but the frames, which are in its folder.

    Args:
        folder: for its files only.
        capacity: number of transitions of the run.
        episodes: expected number of episodes; there is room for at least 1000, or a tenth of the
            transitions. None: there may be as many as transitions.
        task: of DM Control.
        frame_size: S, pixels.
        stack: K.
        action_dimensions: A.
        device: of the batches.

    Attributes:
        device: the same.
        home: where batches are made from the frames: ``device`` if it is an accelerator and they
            need at most half of its free memory, else the CPU.
        bytes_of_frames: size of the frames once the replay is full.
    """

    def __init__(
        self,
        folder: Path,
        capacity: int,
        *,
        task: str,
        frame_size: int,
        stack: int,
        action_dimensions: int,
        device: torch.device,
        episodes: int | None = None,
    ) -> None:
        self.folder = folder
        self.device = device
        self._about = {
            "task": task,
            "frame_size": frame_size,
            "stack": stack,
            "action_dimensions": action_dimensions,
        }
        self._stack = stack
        # Each episode has a first frame in addition to those that transitions lead to.
        most = capacity if episodes is None else max(1000, capacity // 10, episodes)
        frames = capacity + min(capacity, most) + 1
        self._shape = (frames, 3, frame_size, frame_size)
        self._frame_bytes = 3 * frame_size**2
        self.bytes_of_frames = frames * self._frame_bytes
        fits = (
            device.type == "cuda"
            and self.bytes_of_frames <= torch.cuda.mem_get_info(device)[0] // 2
        )
        self.home = device if fits else torch.device("cpu")
        # (F, 3, S, S); on the CPU, once there is a frame.
        self._stored = torch.empty(self._shape if fits else 0, dtype=torch.uint8, device=self.home)
        self._frames = 0
        self._checksums: list[int] = []  # of each chunk; the last one may be incomplete
        self._episode = 0  # first frame of the latest episode
        self._transitions = 0
        # For each transition: the frame before the action, and the first frame of its episode.
        self._arrays = {
            "action": torch.zeros(capacity, action_dimensions, device=self.home),
            "reward": torch.zeros(capacity, device=self.home),
            "terminated": torch.zeros(capacity, device=self.home),
            "frame": torch.zeros(capacity, dtype=torch.int64, device=self.home),
            "first": torch.zeros(capacity, dtype=torch.int64, device=self.home),
        }
        self._stream: io.FileIO | None = None

    def __len__(self) -> int:
        return self._transitions

    def begin(self, frame: np.ndarray) -> None:
        """Start an episode with its first frame, (3, S, S) uint8.

        Raises:
            ValueError: the frame has another shape, or there are too many.
            UserError: it cannot be stored.
        """
        self._append(frame)
        self._episode = self._frames - 1

    def add(
        self, action: np.ndarray, reward: float, frame: np.ndarray, terminated: bool = False
    ) -> None:
        """Add a transition of the episode that began last.

        Args:
            action: (A,).
            reward: for it.
            frame: (3, S, S) uint8, what it led to.
            terminated: whether it ended the episode, other than by a time limit.

        Raises:
            ValueError: no episode has started, an argument has another shape, a number is not
                finite, or the replay is full.
            UserError: the frame cannot be stored.
        """
        actions, position = self._arrays["action"], self._transitions
        if not self._frames:
            raise ValueError("call begin with the first frame of an episode before add")
        if action.shape != actions.shape[1:]:
            raise ValueError(f"an action has {actions.shape[1]} numbers, not shape {action.shape}")
        if not (np.isfinite(action).all() and np.isfinite(reward)):
            raise ValueError(f"not finite: action {action}, reward {reward}")
        if position == len(actions):
            raise ValueError(f"the replay is full: it was made for {position} transitions")
        self._append(frame)
        actions[position] = torch.as_tensor(action)
        self._arrays["reward"][position] = float(reward)
        self._arrays["terminated"][position] = float(terminated)
        self._arrays["frame"][position] = self._frames - 2
        self._arrays["first"][position] = self._episode
        self._transitions += 1

    def draw(self, batch_size: int, crop: int) -> Draw:
        """Uniformly drawn transitions, with replacement, and crop windows; on the CPU.

        Uses torch's global generator.

        Raises:
            ValueError: there are no transitions, or crops are larger than frames.
        """
        size = self._shape[-1]
        if not self._transitions:
            raise ValueError("the replay is empty")
        if not 1 <= crop <= size:
            raise ValueError(f"crops of {crop} pixels from frames of {size}")
        index = torch.randint(self._transitions, (batch_size,))
        return Draw(index, torch.randint(size - crop + 1, (3, batch_size, 2)))

    def batch(self, draw: Draw, crop: int) -> Batch:
        """The transitions of a draw, on the device, without synchronisation.

        This can be part of a CUDA graph if draw and frames are on the device.

        Raises:
            ValueError: a draw on the CPU for smaller crops.
        """
        if draw.offsets.device.type == "cpu" and len(draw.index):
            if int(draw.offsets.max()) > self._shape[-1] - crop:
                raise ValueError(f"the draw is for smaller crops than {crop}; give both the same")
        index, offsets = _moved(draw.index, self.home), _moved(draw.offsets, self.home)
        drawn = {name: array[index] for name, array in self._arrays.items()}
        frame, first = drawn["frame"], drawn["first"]
        crops = (
            gather(self._stored, newest, first, corners, stack=self._stack, crop=crop)
            for newest, corners in zip((frame, frame + 1, frame), offsets, strict=True)
        )
        parts = (*crops, drawn["action"], drawn["reward"], drawn["terminated"])
        return Batch(*(_moved(part, self.device) for part in parts))

    def flush(self) -> None:
        """Wait until all frames have reached the disk.

        Raises:
            UserError: they cannot be written there.
        """
        if self._stream is not None:
            with self._writing():
                os.fsync(self._stream.fileno())

    def state_dict(self) -> dict[str, Any]:
        """Everything but the frames, which have reached the disk when this returns."""
        self.flush()
        return {
            "frames": self._frames,
            "checksums": list(self._checksums),
            "episode": self._episode,
            # Copies, since saving a view would save its whole storage.
            **{name: array[: len(self)].cpu().clone() for name, array in self._arrays.items()},
        }

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        """Restore the state, and read the folder's frames up to it.

        Raises:
            UserError: the frames are from other settings, missing or damaged.
        """
        self.close()
        self._frames, self._episode = state["frames"], state["episode"]
        self._checksums = list(state["checksums"])
        self._transitions = len(state["reward"])
        for name, array in self._arrays.items():
            # Older checkpoints are of environments that end by their time limit only.
            array[: len(self)] = state.get(name, 0)
        if self._frames:
            self._check_header()
            self._read()
            self._open()

    def delete(self) -> None:
        """Delete the files and free the memory; the replay cannot be used afterwards."""
        self.close()
        self._stored = torch.empty(0, dtype=torch.uint8)
        for file in (self._file, self._header):
            file.unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # already deleted, or it holds other files
            self.folder.rmdir()

    @property
    def _file(self) -> Path:
        return self.folder / "frames.bin"

    @property
    def _header(self) -> Path:
        return self.folder / "replay.json"

    def _append(self, frame: np.ndarray) -> None:
        if frame.shape != self._shape[1:] or frame.dtype != np.uint8:
            actual = f"{frame.dtype} of shape {frame.shape}"
            raise ValueError(f"a frame is uint8 of shape {self._shape[1:]}, not {actual}")
        if self._frames == self._shape[0]:
            text = f"{self._frames} frames for {len(self)} transitions: the episodes are too short"
            raise ValueError(f"the replay is full: {text}")
        stream = self._stream or self._open()
        content = frame.tobytes()
        with self._writing():
            left = memoryview(content)
            while left:
                left = left[stream.write(left) :]
        if self.home.type != "cpu":
            self._stored[self._frames] = torch.as_tensor(frame)
        if self._frames % CHUNK == 0:
            self._checksums.append(0)
        self._checksums[-1] = zlib.crc32(content, self._checksums[-1])
        self._frames += 1

    def _open(self) -> io.FileIO:
        """Open the file for appending after the known frames; anything beyond is truncated."""
        with self._writing():
            if not self._frames:
                self.folder.mkdir(parents=True, exist_ok=True)
                write_atomically(self._header, json.dumps(self._about, indent=2) + "\n")
            # Unbuffered, so that writes show in the mapping at once. Writing to the mapping itself
            # would crash the process without a message on a full disk.
            stream = io.FileIO(self._file, "r+" if self._frames else "w")
            stream.seek(stream.truncate(self._frames * self._frame_bytes))
            if self.home.type == "cpu":
                stream.truncate(self.bytes_of_frames)  # a hole takes no disk space
        if self.home.type == "cpu":
            file, size = str(self._file), self.bytes_of_frames
            flat = torch.from_file(file, shared=True, size=size, dtype=torch.uint8)
            self._stored = flat.view(self._shape)
        self._stream = stream
        return stream

    def close(self) -> None:
        """Close the file; adding a frame opens it again."""
        if self._stream is not None:
            self._stream.close()
            self._stream = None

    def _check_header(self) -> None:
        try:
            header = json.loads(self._header.read_text(encoding="utf-8"))
            stored = {name: header[name] for name in self._about}
        except (OSError, ValueError, KeyError, TypeError):
            raise self._fault(self._header, "missing or damaged") from None
        if differences := [
            f"{name} {stored[name]} there, {value} here"
            for name, value in self._about.items()
            if stored[name] != value
        ]:
            text = f"a replay with other settings ({'; '.join(differences)})"
            raise self._fault(self._header, text)

    def _read(self) -> None:
        """Compare all chunks with their checksums, and copy them to the device if needed."""
        try:
            stream = self._file.open("rb")
        except OSError as error:
            raise self._fault(self._file, f"cannot be read ({error.strerror})") from None
        with stream:
            for number, checksum in enumerate(self._checksums):
                start, stop = number * CHUNK, min((number + 1) * CHUNK, self._frames)
                content = bytearray((stop - start) * self._frame_bytes)
                if (length := stream.readinto(content)) < len(content):
                    length = start + length // self._frame_bytes
                    raise self._fault(self._file, f"{length} frames of {self._frames}")
                if zlib.crc32(content) != checksum:
                    raise self._fault(self._file, f"frames {start} to {stop - 1} are damaged")
                if self.home.type != "cpu":
                    frames = torch.frombuffer(content, dtype=torch.uint8)
                    self._stored[start:stop] = frames.view(-1, *self._shape[1:])

    def _fault(self, file: Path, text: str) -> UserError:
        return UserError(f"{file}: {text}; delete the run's folder to start it again")

    def _writing(self) -> contextlib.AbstractContextManager[None]:
        return writing(self._file, "make room, and run it again")


def _moved(tensor: Tensor, device: torch.device) -> Tensor:
    """``tensor`` on ``device``, copied asynchronously if that is an accelerator."""
    if device.type == "cuda" and not tensor.is_cuda:
        tensor = tensor.pin_memory()  # a copy from pageable memory would block
    return tensor.to(device, non_blocking=True)
