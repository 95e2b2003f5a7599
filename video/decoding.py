"""Frames of a video file, in order and upright; an incomplete file is an error.

Shapes: H x W pixels of a frame.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import av
import numpy as np
from av.container import InputContainer
from av.error import FFmpegError
from av.sidedata.sidedata import Type as SideData
from av.video.reformatter import VideoReformatter

from shared.errors import UserError
from shared.experiment.folders import printable

COMPLETE = 0.9  # share of the container's stated frames or seconds that has to be there
# Formats in which a file holds a video; a playlist would name another file.
OPTIONS = {"format_whitelist": "avi,matroska,webm,mov,mp4,m4a,3gp,3g2,mj2,mpeg,mpegts,asf,flv,ogg"}


def decode(file: Path) -> Iterator[np.ndarray]:
    """The frames of a video in order, each (H, W, 3) uint8, in one thread.

    The container's rotation and mirroring, as written by phones, is applied.
    """
    try:
        with av.open(
            str(file),
            container_options=OPTIONS,
            metadata_errors="replace",  # titles in other encodings
        ) as container:
            if not container.streams.video:
                raise UserError(f"{printable(file)}: has no video stream")
            # Beside a cover picture, the film.
            stream = container.streams.best("video") or container.streams.video[0]
            assert isinstance(stream, av.VideoStream)
            if stream.codec_context is None:
                raise UserError(f"{printable(file)}: no decoder for its codec")
            stream.codec_context.thread_count = 1
            shape, count, end, cut = None, 0, 0.0, 0
            # A frame's own conversion would start as many threads as there are cores, and end them.
            reformatter = VideoReformatter()
            for packet in container.demux(stream):
                cut += packet.is_discard  # by an edit list
                for frame in packet.decode():
                    if frame.is_corrupt:
                        raise UserError(f"{printable(file)}: damaged")
                    if shape not in (None, (frame.height, frame.width)):
                        why = "its frames change size; encode it with one"
                        raise UserError(f"{printable(file)}: {why}")
                    shape, count = (frame.height, frame.width), count + 1
                    end = max(end, frame.time or 0.0)
                    converted = reformatter.reformat(frame, format="rgb24", threads=1)
                    yield _upright(file, frame, converted.to_ndarray())
            if count == 0:
                raise UserError(f"{printable(file)}: no frame can be decoded")
            # Lost packets are not reported; encoders of B-frames count a few frames too many.
            stated = stream.frames - cut
            if count < COMPLETE * stated:
                raise UserError(f"{printable(file)}: damaged, {count} frames of {stated}")
            # Matroska and WebM do not count frames. `end` excludes the duration of the last one.
            start = (stream.start_time or 0) * float(stream.time_base or 0)
            whole = _seconds(container, stream, start)
            decoded = (end - start) * count / max(count - 1, 1)
            if not stream.frames and count > 1 and decoded < COMPLETE * whole:
                raise UserError(f"{printable(file)}: damaged, {decoded:.2f} of {whole:.2f} seconds")
    except (FFmpegError, OSError) as error:
        reason = error.strerror or type(error).__name__
        raise UserError(f"{printable(file)}: cannot be decoded ({reason})") from error


def fault_of(error: UserError, file: Path) -> str:
    """The message of :func:`decode` for a file, without the file's name."""
    return str(error).removeprefix(f"{printable(file)}: ")


def _seconds(container: InputContainer, stream: av.VideoStream, start: float) -> float:
    """The duration of a stream according to the container; 0 if it states none.

    Matroska states when it ends; ``start`` is when it begins, in seconds.
    """
    if stream.duration and stream.time_base:
        return float(stream.duration * stream.time_base)
    if duration := stream.metadata.get("DURATION"):
        try:
            hours, minutes, seconds = (float(part) for part in duration.split(":"))
        except ValueError:
            return 0.0
        return 3600 * hours + 60 * minutes + seconds - start
    # With audio, the container's duration may be that of the audio.
    alone = len(container.streams) == 1
    return container.duration / av.time_base - start if alone and container.duration else 0.0


def _upright(file: Path, frame: av.VideoFrame, pixels: np.ndarray) -> np.ndarray:
    """A frame's pixels rotated and mirrored according to its display matrix."""
    matrix: Any = frame.side_data.get(SideData.DISPLAYMATRIX.name)
    if matrix is None:
        return pixels
    # Pixel (x, y) is shown at (a x + c y, b x + d y), up to a translation.
    a, b, _, c, d = np.frombuffer(bytes(matrix), np.int32)[:5] / 65536
    if np.allclose([b, c], 0):
        across, down = a, d
    elif np.allclose([a, d], 0):
        pixels, across, down = pixels.transpose(1, 0, 2), c, b
    else:
        why = f"is rotated by {frame.rotation} degrees; rotate it upright first"
        raise UserError(f"{printable(file)}: {why}")
    return np.ascontiguousarray(pixels[:: 1 if down > 0 else -1, :: 1 if across > 0 else -1])
