"""The replay buffer: single frames, which are stacked and cropped when batches are drawn.

Shapes: F frames, T transitions, B of a batch, K frames of a stack, S pixels of a frame, C of a
crop, A dimensions of an action. An episode of n transitions has n + 1 frames, each stored once.

    frames.bin      all frames in order, (3, S, S) bytes each

The file is a memory-mapped array, whose space on the disk is allocated when it is made: a run that
does not fit ends before its first step. On the CPU batches are read from it, and the operating
system caches it if there is room. On an accelerator with room for all frames a tensor holds them as
well. Storing and resuming are therefore the same on every device.

Frames are only appended. The checkpoint is written after they have reached the disk; those beyond
it, as after a kill, are overwritten.
"""

import contextlib
import errno
import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from shared.errors import UserError
from shared.experiment.data import writing

FRAMES = "frames.bin"


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
        folder: for its file only.
        capacity: number of transitions of the run.
        episodes: expected number of episodes; there is room for at least 1000, or a tenth of the
            transitions. None: there may be as many as transitions.
        frame_size: S, pixels.
        stack: K.
        action_dimensions: A.
        device: of the batches.

    Attributes:
        device: the same.
        home: where batches are made from the frames: ``device`` if it is an accelerator and they
            need at most half of its free memory, else the CPU.

    Raises:
        UserError: there is no room for the frames.
    """

    def __init__(
        self,
        folder: Path,
        capacity: int,
        *,
        frame_size: int,
        stack: int,
        action_dimensions: int,
        device: torch.device,
        episodes: int | None = None,
    ) -> None:
        self.folder = folder
        self.device = device
        self._stack = stack
        # Each episode has a first frame in addition to those that transitions lead to.
        most = capacity if episodes is None else max(1000, capacity // 10, episodes)
        self._shape = (capacity + min(capacity, most) + 1, 3, frame_size, frame_size)
        file, size = folder / FRAMES, math.prod(self._shape)
        self._kept = file.is_file() and file.stat().st_size == size  # of a run that is resumed
        if not self._kept:
            _allocate(file, size)
        self._mapped: np.memmap[Any, Any] = np.memmap(file, np.uint8, "r+", shape=self._shape)
        fits = device.type == "cuda" and size <= torch.cuda.mem_get_info(device)[0] // 2
        self.home = device if fits else torch.device("cpu")
        self._stored = (
            torch.empty(self._shape, dtype=torch.uint8, device=self.home)
            if fits
            else torch.from_numpy(self._mapped)
        )
        self._frames = 0
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

    def __len__(self) -> int:
        return self._transitions

    def begin(self, frame: np.ndarray) -> None:
        """Start an episode with its first frame, (3, S, S) uint8.

        Raises:
            ValueError: the frame has another shape, or there are too many.
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

    def state_dict(self) -> dict[str, Any]:
        """Everything but the frames, which have reached the disk when this returns."""
        self._mapped.flush()
        return {
            "frames": self._frames,
            "episode": self._episode,
            # Copies, since saving a view would save its whole storage.
            **{name: array[: len(self)].cpu().clone() for name, array in self._arrays.items()},
        }

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        """Restore the state; the frames up to it are those of the file.

        Raises:
            UserError: the file was missing or has another size.
        """
        if state["frames"] and not self._kept:
            raise UserError(
                f"{self.folder / FRAMES}: missing, or not of this run; delete the run's folder to "
                f"start it again"
            )
        self._frames, self._episode = state["frames"], state["episode"]
        self._transitions = len(state["reward"])
        for name, array in self._arrays.items():
            array[: len(self)] = state[name]
        if self.home.type != "cpu":
            self._stored[: self._frames] = torch.from_numpy(self._mapped[: self._frames])

    def delete(self) -> None:
        """Delete the file and free the memory; the replay cannot be used afterwards."""
        self._stored = torch.empty(0, dtype=torch.uint8)
        del self._mapped
        (self.folder / FRAMES).unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # already deleted, or it holds other files
            self.folder.rmdir()

    def _append(self, frame: np.ndarray) -> None:
        if frame.shape != self._shape[1:] or frame.dtype != np.uint8:
            actual = f"{frame.dtype} of shape {frame.shape}"
            raise ValueError(f"a frame is uint8 of shape {self._shape[1:]}, not {actual}")
        if self._frames == self._shape[0]:
            text = f"{self._frames} frames for {len(self)} transitions: the episodes are too short"
            raise ValueError(f"the replay is full: {text}")
        self._mapped[self._frames] = frame
        if self.home.type != "cpu":
            self._stored[self._frames] = torch.as_tensor(frame)
        self._frames += 1


def _allocate(file: Path, size: int) -> None:
    """Make a file of that many bytes whose space on the disk is taken."""
    remedy = f"the frames of the whole run take {size / 1e9:.1f} GB; make room, and run it again"
    with writing(file, remedy):
        file.parent.mkdir(parents=True, exist_ok=True)
        try:
            with file.open("wb") as stream:
                try:
                    os.posix_fallocate(stream.fileno(), 0, size)
                except (AttributeError, OSError) as error:
                    if getattr(error, "errno", None) == errno.ENOSPC:
                        raise
                    for start in range(0, size, 2**24):  # not every file system has it
                        stream.write(bytes(min(2**24, size - start)))
        except OSError:
            file.unlink(missing_ok=True)
            raise


def _moved(tensor: Tensor, device: torch.device) -> Tensor:
    """``tensor`` on ``device``, copied asynchronously if that is an accelerator."""
    if device.type == "cuda" and not tensor.is_cuda:
        tensor = tensor.pin_memory()  # a copy from pageable memory would block
    return tensor.to(device, non_blocking=True)
