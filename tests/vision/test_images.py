"""The door that images pass: what each type and mode means, and what is refused in one line."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from shared.errors import UserError
from vision.augmentation import Policy, augment
from vision.data import central_crops
from vision.encoder import make_encoder
from vision.features import embed
from vision.images import ImageFiles, Images, decode, fault_of
from vision.own import folder

COLOURS = {"mean": (0.5, 0.4, 0.3), "std": (0.25, 0.2, 0.3)}
RAMP = np.tile(np.arange(0, 256, 4, dtype=np.uint8), (64, 1))  # 64 levels of grey
LEFT_HALF = np.where(np.arange(8) < 4, 255, 0).astype(np.uint8)[None].repeat(6, 0)


def colours(image: Image.Image) -> np.ndarray:
    assert image.mode == "RGB"
    return np.asarray(image)


def saved(tmp_path: Path, image: Image.Image, name: str, **options: Any) -> Path:
    image.save(tmp_path / name, **options)
    return tmp_path / name


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("8.png", RAMP),
        ("16.png", RAMP * np.uint16(257)),
        ("16.tif", RAMP * np.uint16(257)),
        ("16.pgm", RAMP * np.uint16(257)),
        ("float.tif", (RAMP / 255).astype(np.float32)),
    ],
)
def test_grey_files_of_any_depth_are_the_same_picture(
    tmp_path: Path, name: str, values: np.ndarray
) -> None:
    Image.fromarray(values).save(tmp_path / name)
    assert np.array_equal(colours(decode(tmp_path / name)), np.stack([RAMP] * 3, axis=2))


def test_16_and_12_bits_are_read_in_any_order_and_direction(tmp_path: Path) -> None:
    values = np.array([[0, 128, 129, 65535]], dtype=np.uint16)
    big = Image.frombytes("I;16B", (4, 1), values.astype(">u2").tobytes())
    for image in (Image.fromarray(values), big, Image.open(saved(tmp_path, big, "big.tif"))):
        assert colours(decode(image))[0, :, 0].tolist() == [0, 0, 1, 255]
    values = np.array([[0, 2048, 4095]], dtype=np.uint16)
    image = Image.fromarray(values)
    inverted = saved(tmp_path, image, "white.tif", tiffinfo={262: 0})
    assert colours(decode(inverted))[0, :, 0].tolist() == [255, 247, 239]
    packed = tmp_path / "12.tif"  # three numbers of 12 bits: 000 800 fff
    saved(tmp_path, Image.fromarray(np.zeros((1, 5), np.uint8)), "12.tif")
    content = bytearray(packed.read_bytes())
    packed.write_bytes(as_12_bits(content, b"\x00\x08\x00\xff\xf0", width=3))
    assert colours(decode(packed))[0, :, 0].tolist() == [0, 128, 255]


def as_12_bits(content: bytearray, pixels: bytes, width: int) -> bytes:
    """A small TIFF of Pillow with other pixels, width and depth."""
    start = int.from_bytes(content[4:8], "little")
    for number in range(int.from_bytes(content[start : start + 2], "little")):
        place = start + 2 + 12 * number
        tag = int.from_bytes(content[place : place + 2], "little")
        value = int.from_bytes(content[place + 8 : place + 12], "little")
        if tag == 273:  # where the pixels lie
            content[value : value + len(pixels)] = pixels
        for changed, to in ((256, width), (258, 12)):
            if tag == changed:
                content[place + 8 : place + 12] = to.to_bytes(4, "little")
    return bytes(content)


@pytest.mark.parametrize(
    "mode", ["1", "L", "LA", "P", "PA", "RGB", "RGBA", "RGBa", "CMYK", "YCbCr"]
)
def test_every_mode_becomes_rgb(mode: str) -> None:
    red = Image.new("RGBA", (3, 2), (255, 0, 0, 255))
    through = "RGBA" if mode == "RGBa" else "RGB"
    image = red.convert("LA") if mode == "LA" else red.convert(through).convert(mode)
    expected = [76] * 3 if mode in ("L", "LA") else [255, 0, 0]
    if mode == "1":
        image, expected = Image.new("1", (3, 2), 1), [255] * 3
    assert np.abs(colours(decode(image)).astype(int) - expected).max() <= 1


@pytest.mark.parametrize(
    ("values", "why"),
    [
        (np.array([[-5, 300]], np.int32), "-5 to 300"),
        (np.array([[0.0, 2.0]], np.float32), "0 to 2"),
        (np.array([[0.0, np.nan]], np.float32), "0 to 1"),
    ],
)
def test_numbers_without_a_range_are_refused(tmp_path: Path, values: np.ndarray, why: str) -> None:
    file = saved(tmp_path, Image.fromarray(values), "a.tif")
    with pytest.raises(UserError, match=why):
        decode(file)


def test_a_picture_of_postscript_is_given_to_no_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Image.new("RGB", (8, 8)).save(tmp_path / "picture.eps")
    file = (tmp_path / "picture.eps").rename(tmp_path / "picture.png")
    started: list[object] = []
    monkeypatch.setattr("PIL.EpsImagePlugin.Ghostscript", lambda *call, **_: started.append(call))
    assert fault_of(file)
    assert not started


def test_files_that_are_no_images_are_named(tmp_path: Path) -> None:
    whole = saved(tmp_path, Image.fromarray(RAMP), "0.png").read_bytes()
    for name, content, why in (
        ("text.jpg", b"no image", "not an image"),
        ("half.png", whole[: len(whole) // 2], "truncated"),
        ("none.png", None, "No such file"),
    ):
        if content is not None:
            (tmp_path / name).write_bytes(content)
        with pytest.raises(UserError, match=rf"{name}.*{why}"):
            decode(tmp_path / name)
        assert why in str(fault_of(tmp_path / name))
    assert fault_of(tmp_path / "0.png") is None


@pytest.mark.parametrize("orientation", range(1, 9))
def test_own_folders_are_turned_upright_and_published_sets_are_not(
    tmp_path: Path, orientation: int
) -> None:
    upright = Image.fromarray(np.stack([LEFT_HALF] * 3, axis=2))
    turned = {  # how a camera stores it, so that the orientation gives it back
        1: None,
        2: Image.Transpose.FLIP_LEFT_RIGHT,
        3: Image.Transpose.ROTATE_180,
        4: Image.Transpose.FLIP_TOP_BOTTOM,
        5: Image.Transpose.TRANSPOSE,
        6: Image.Transpose.ROTATE_90,
        7: Image.Transpose.TRANSVERSE,
        8: Image.Transpose.ROTATE_270,
    }[orientation]
    stored = upright if turned is None else upright.transpose(turned)
    exif = Image.Exif()
    exif[0x0112] = orientation
    place = tmp_path / "train" / "one"
    place.mkdir(parents=True)
    saved(place, stored, "0.png", exif=exif)
    images = folder(tmp_path)
    assert np.array_equal(colours(decode(images.files[0], upright=True)), np.asarray(upright))
    (crop,) = central_crops(images, 6, 1.0)
    assert (crop == torch.tensor([255, 255, 255, 0, 0, 0])).all()
    published = ImageFiles(images.files, images.labels)
    assert np.array_equal(colours(decode(published.files[0])), np.asarray(stored))
    scan = saved(place, stored.convert("L"), "0.tif", exif=exif)  # grey, not compressed
    assert np.array_equal(colours(decode(scan, upright=True)), np.asarray(upright))


BYTES = torch.from_numpy(RAMP.copy())[None, None].repeat(2, 3, 1, 1)


@pytest.mark.parametrize(
    "pixels",
    [
        BYTES.numpy(),
        BYTES.float() / 255,
        BYTES.double() / 255,
        (BYTES.float() / 255).half(),
        BYTES.int().numpy().astype(np.uint16) * 257,
        BYTES.int().numpy().astype(">u2") * 257,
        (BYTES.numpy() / 255).astype(">f4"),
        BYTES.numpy()[:, ::-1],
    ],
    ids=["uint8", "float32", "float64", "float16", "uint16", ">u2", ">f4", "backwards"],
)
def test_pixels_of_every_type_with_a_range_are_the_same(pixels: Any) -> None:
    images = Images(pixels, np.array([0, 1], dtype=">i4"))
    assert torch.equal(images.pixels, BYTES)
    assert images.labels.dtype == torch.int64


@pytest.mark.parametrize(
    ("pixels", "labels", "why"),
    [
        (BYTES.short(), [0, 1], "int16"),
        (BYTES.numpy().astype(np.uint32), [0, 1], "uint32"),
        (BYTES.float(), [0, 1], "0 to 252"),
        (BYTES / 255 - 0.5, [0, 1], "-0.5 to 0.48"),
        (BYTES * torch.nan, [0, 1], "nan"),
        (BYTES.permute(0, 2, 3, 1), [0, 1], "permute"),
        (BYTES[:, 0], [0, 1], "unsqueeze"),
        (BYTES, [0, 1, 2], r"\(3,\)"),
        (BYTES, [0.0, np.nan], "float64"),
    ],
)
def test_arrays_that_are_no_images_are_refused(pixels: Any, labels: Any, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        Images(pixels, labels)


def test_one_channel_is_a_grey_image_of_three() -> None:
    mean = nn.Sequential(nn.Conv2d(3, 3, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    grey, colour = (Images(pixels, [0, 1]) for pixels in (BYTES[:, :1], BYTES))
    assert torch.equal(embed(mean, grey, 64, **COLOURS), embed(mean, colour, 64, **COLOURS))
    views = [
        augment(
            pixels, Policy(flip=0.5), 64, seed=0, epoch=0, samples=np.arange(2), view=0, **COLOURS
        )
        for pixels in (BYTES, BYTES[:, :1], BYTES / 255)
    ]
    assert all(torch.equal(views[0], each) for each in views[1:])


def test_an_encoder_s_own_channels_are_taken_and_others_named() -> None:
    torch.manual_seed(0)
    images = Images(torch.randint(0, 256, (2, 5, 16, 16), dtype=torch.uint8), [0, 1])
    encoder = make_encoder("resnet18", "small", channels=5)
    five = {"mean": (0.5,) * 5, "std": (0.25,) * 5}
    assert embed(encoder, images, 16, **five).shape == (2, 512)
    with pytest.raises(ValueError, match="5 channels"):
        embed(encoder, images, 16, **COLOURS)
    with pytest.raises(RuntimeError, match="5 channels"):
        embed(make_encoder("resnet18", "small"), images, 16, **five)
    with pytest.raises(ValueError, match="Tensor"):
        embed(encoder, images.pixels, 16, **five)
