"""What tests of videos share: an AVI file in UCF-101's codec from given frames."""

from collections.abc import Sequence
from pathlib import Path

import av
import numpy as np


def write_avi(file: Path, frames: Sequence[np.ndarray]) -> Path:
    """Write frames (H, W, 3) uint8 to a file, whose folder is made."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with av.open(str(file), "w", format="avi") as container:
        stream = container.add_stream("mpeg4", rate=25)
        stream.height, stream.width = frames[0].shape[:2]
        stream.pix_fmt, stream.bit_rate = "yuv420p", 4_000_000
        for frame in frames:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")))
        container.mux(stream.encode())
    return file
