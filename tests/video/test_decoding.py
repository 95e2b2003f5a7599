"""Frames of files in all containers: upright, complete, or an error in one line."""

import struct
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest

from shared.errors import UserError
from video.decoding import decode

WIDTH, HEIGHT = 64, 48


def add_film(
    container: Any, frames: Sequence[np.ndarray], codec: str = "mpeg4", first: int = 0, **more: Any
) -> None:
    """A stream of frames (H, W, 3) uint8, of which the first one's number is given."""
    stream = container.add_stream(codec, rate=25, pix_fmt="yuv420p", **more)
    stream.height, stream.width = frames[0].shape[:2]
    stream.codec_context.time_base = Fraction(1, 25)
    for number, pixels in enumerate(frames, first):
        frame = av.VideoFrame.from_ndarray(pixels, format="rgb24")
        frame.pts, frame.time_base = number, Fraction(1, 25)
        container.mux(stream.encode(frame))
    container.mux(stream.encode())


def write_avi(file: Path, frames: Sequence[np.ndarray]) -> Path:
    """A file in UCF-101's codec, whose folder is made."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with av.open(str(file), "w", format="avi") as container:
        add_film(container, frames, bit_rate=4_000_000)
    return file


def write(
    file: Path, frames: int = 25, codec: str = "mpeg4", title: str = "", **options: str
) -> bytes:
    """A video of noise with a white corner at the top left."""
    pixels = np.random.default_rng(0).integers(0, 60, (frames, HEIGHT, WIDTH, 3)).astype(np.uint8)
    pixels[:, : HEIGHT // 2, : WIDTH // 2] = 255
    with av.open(str(file), "w", options=options) as container:
        container.metadata["title"] = title
        add_film(container, pixels, codec)
    return file.read_bytes()


def reason(file: Path, content: bytes) -> str:
    """Why a file with this content cannot be used."""
    file.write_bytes(content)
    with pytest.raises(UserError) as caught:
        list(decode(file))
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith(f"{file}: ")
    return str(caught.value).removeprefix(f"{file}: ")


def test_frames_are_red_green_and_blue_in_rows_from_the_top(tmp_path: Path) -> None:
    """A quarter of each colour, in the order of the frames."""
    colours = [(250, 20, 20), (20, 250, 20), (20, 20, 250), (200, 200, 20)]
    frames = []
    for number in range(3):
        frame = np.zeros((HEIGHT, WIDTH, 3), np.uint8)
        for place, colour in enumerate(np.roll(colours, number, axis=0)):
            top, left = place // 2 * HEIGHT // 2, place % 2 * WIDTH // 2
            frame[top : top + HEIGHT // 2, left : left + WIDTH // 2] = colour
        frames.append(frame)
    found = list(decode(write_avi(tmp_path / "colours.avi", frames)))
    assert len(found) == 3
    for frame, expected in zip(found, frames, strict=True):
        assert frame.dtype == np.uint8
        assert np.abs(frame.astype(int) - expected).mean() < 8


@pytest.mark.parametrize(
    ("name", "codec", "options"),
    [
        ("video.avi", "mpeg4", {}),
        ("video.mkv", "mpeg4", {}),
        ("first.mp4", "mpeg4", {"movflags": "faststart"}),
        ("parts.mp4", "mpeg4", {"movflags": "frag_keyframe+empty_moov"}),
        ("video.mov", "libx264", {}),
    ],
)
def test_a_truncated_file_is_an_error_in_every_container(
    tmp_path: Path, name: str, codec: str, options: dict[str, str]
) -> None:
    file = tmp_path / name
    good = write(file, codec=codec, **options)
    assert [frame.shape for frame in decode(file)] == [(HEIGHT, WIDTH, 3)] * 25
    for kept in (len(good) // 2, len(good) * 4 // 5):
        reason(file, good[:kept])


@pytest.mark.parametrize("tag", [b"DURATION", b"ANOTHER_"])  # of the stream, or the file's alone
def test_without_a_length_the_duration_is_compared(tmp_path: Path, tag: bytes) -> None:
    file = tmp_path / "video.mkv"
    good = write(file, frames=100, codec="libx264", cluster_time_limit="400")
    assert b"DURATION" in good
    good = good.replace(b"DURATION", tag)
    at = good.index(b"\x18\x53\x80\x67") + 4
    unknown = good[:at] + b"\x01" + b"\xff" * 7 + good[at + 8 :]
    file.write_bytes(unknown)
    assert len(list(decode(file))) == 100
    cluster = unknown.rindex(b"\x1f\x43\xb6\x75", 0, 2 * len(unknown) // 3)
    found = reason(file, unknown[:cluster])
    assert found.startswith("damaged, ")
    assert found.endswith(" of 4.00 seconds")


def with_matrix(content: bytes, *matrix: float) -> bytes:
    """An MP4 file with the matrix a, b, c, d for its display."""
    a, b, c, d = (round(each * 65536) for each in matrix)
    at = content.index(b"tkhd") + 44
    return content[:at] + struct.pack(">9i", a, b, 0, c, d, 0, 0, 0, 1 << 30) + content[at + 36 :]


@pytest.mark.parametrize(
    ("matrix", "shown"),
    [
        ((0, 1, -1, 0), lambda frame: np.rot90(frame, -1)),  # a phone held upright
        ((0, -1, 1, 0), lambda frame: np.rot90(frame, 1)),
        ((-1, 0, 0, -1), lambda frame: np.rot90(frame, 2)),
        ((-1, 0, 0, 1), np.fliplr),
        ((0, 1, 1, 0), lambda frame: frame.transpose(1, 0, 2)),
    ],
)
def test_frames_are_upright(tmp_path: Path, matrix: Sequence[float], shown) -> None:
    content = write(tmp_path / "plain.mp4", frames=3)
    (tmp_path / "turned.mp4").write_bytes(with_matrix(content, *matrix))
    plain, turned = (list(decode(tmp_path / f"{name}.mp4")) for name in ("plain", "turned"))
    assert len(plain) == len(turned) == 3
    for one, other in zip(plain, turned, strict=True):
        np.testing.assert_array_equal(other, shown(one))


def test_a_damaged_file_is_named_with_the_reason(tmp_path: Path) -> None:
    good = write(tmp_path / "good.avi", frames=40, codec="libx264")
    file = tmp_path / "video.avi"
    for content in (b"", b"I am no video\n" * 99):
        assert "cannot be decoded" in reason(file, content)
    begin = good.index(b"movi")

    def inverted(first: int, last: int) -> bytes:
        part = bytes(each ^ 255 for each in good[begin + first : begin + last])
        return good[: begin + first] + part + good[begin + last :]

    # Lost packets, of which the decoder says nothing.
    found = {reason(file, inverted(at, at + 4000)) for at in range(800, len(good) // 2, 1500)}
    assert any(each.startswith("damaged, ") and each.endswith(" of 40") for each in found), found
    with av.open(str(tmp_path / "sound.avi"), "w", format="avi") as container:
        stream = container.add_stream("pcm_s16le", rate=8000, layout="mono")
        sound = av.AudioFrame.from_ndarray(np.zeros((1, 800), np.int16), "s16", "mono")
        sound.sample_rate = 8000
        container.mux(stream.encode(sound))
        container.mux(stream.encode())
    assert "video stream" in reason(file, (tmp_path / "sound.avi").read_bytes())


@pytest.mark.parametrize("ending", [".avi", ".mp4", ".mkv"])
def test_a_playlist_is_not_the_video_that_it_names(tmp_path: Path, ending: str) -> None:
    write(tmp_path / "other.mp4")
    reason(tmp_path / f"list{ending}", b"ffconcat version 1.0\nfile other.mp4\n")


@pytest.mark.parametrize(("first", "seconds"), [(0, 0.4), (10, 0.2)])
def test_an_edit_list_leaves_frames_out(tmp_path: Path, first: int, seconds: float) -> None:
    """A film that was cut without being encoded anew: the index lists more than is shown."""
    file = tmp_path / "cut.mp4"
    data = bytearray(write(file, codec="libx264"))
    whole = list(decode(file))
    entry = data.find(b"elst") + 12  # duration in milliseconds, beginning on the film's own clock
    (begin,) = struct.unpack_from(">i", data, entry + 4)
    with av.open(str(file)) as container:
        step = round(1 / (25 * float(container.streams.video[0].time_base)))
    struct.pack_into(">Ii", data, entry, round(1000 * seconds), begin + first * step)
    file.write_bytes(data)
    shown = list(decode(file))
    count = round(25 * seconds)
    assert count <= len(shown) <= count + 2 < 25
    for one, other in zip(shown, whole[first:], strict=False):
        assert np.abs(one.astype(int) - other).mean() < 1
    reason(file, bytes(data[: len(data) // 2]))


@pytest.mark.parametrize("ending", [".mp4", ".mkv"])
def test_times_may_start_late(tmp_path: Path, ending: str) -> None:
    file = tmp_path / f"late{ending}"
    with av.open(str(file), "w") as container:
        add_film(container, np.zeros((20, HEIGHT, WIDTH, 3), np.uint8), first=125)
    assert len(list(decode(file))) == 20


def test_a_cover_picture_is_not_the_film(tmp_path: Path) -> None:
    file = tmp_path / "cover.mkv"
    with av.open(str(file), "w") as container:
        picture = container.add_stream("mjpeg", rate=1)
        picture.width, picture.height, picture.pix_fmt = 32, 32, "yuvj420p"
        add_film(container, np.zeros((20, HEIGHT, WIDTH, 3), np.uint8))
        cover = av.VideoFrame.from_ndarray(np.zeros((32, 32, 3), np.uint8))
        container.mux(picture.encode(cover.reformat(format="yuvj420p")))
    assert [frame.shape for frame in decode(file)] == [(HEIGHT, WIDTH, 3)] * 20


@pytest.mark.parametrize("ending", [".avi", ".mkv", ".mp4"])
def test_a_title_in_another_encoding_does_not_matter(tmp_path: Path, ending: str) -> None:
    content = write(tmp_path / f"video{ending}", frames=3, title="Cafe-XX")
    assert b"Cafe-XX" in content
    (tmp_path / f"latin{ending}").write_bytes(content.replace(b"Cafe-XX", b"Caf\xe9-XX"))
    plain, titled = (list(decode(tmp_path / f"{name}{ending}")) for name in ("video", "latin"))
    np.testing.assert_array_equal(titled, plain)


def test_frames_of_two_sizes_are_no_damage(tmp_path: Path) -> None:
    file = tmp_path / "video.mkv"
    with av.open(str(file), "w") as container:
        stream = container.add_stream("mjpeg", rate=25)
        other = av.CodecContext.create("mjpeg", "w")
        for number, encoder in enumerate((stream, other)):
            encoder.width = encoder.height = side = 32 * (number + 1)
            encoder.pix_fmt, encoder.time_base = "yuvj420p", Fraction(1, 25)
            frame = av.VideoFrame.from_ndarray(np.zeros((side, side, 3), np.uint8))
            for packet in (*encoder.encode(frame), *encoder.encode(None)):
                packet.stream, packet.pts, packet.dts = stream, number, number
                container.mux(packet)
    assert "size" in reason(file, file.read_bytes())
