"""What vision and video share: draws against chance and loops, clips as frames, kept numbers.

The transforms themselves stand beside torchvision's in tests/vision and tests/video.
"""

import itertools
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from shared import pixels

# As the code that vision and video each had gave them.
DRAWS = [
    [8846665954310825, 6056383026332709],
    [4051164811239127, 5953884013779255],
    [3850370809123878, 7132381250092531],
]
BOXES = [[11, 13, 85, 109], [1, 31, 75, 81], [18, 32, 66, 88]]
BOXES_OF_SIDES = [[0, 136, 20, 27], [136, 0, 27, 20], [8, 17, 82, 107]]
JITTERED = (
    *(0.0254911, 0.1192341, 0.0, 0.0840778, 0.1543974, 0.2481403),
    *(0.380526, 0.8701635, 0.6192862, 0.380526, 1.0, 0.5862416),
)

# What is drawn


def test_first_uniforms_follow_the_published_splitmix64():
    """SplitMix64 started at 0 begins with these three words (Vigna's reference program)."""
    words = [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]
    steps = np.arange(1, 4, dtype=np.uint64) * pixels._STEP
    assert pixels._mix(steps).tolist() == words


def test_roles_of_seed_epoch_sample_and_view_cannot_be_exchanged():
    keys = itertools.product((0, 1, 2), repeat=4)
    firsts = {pixels.uniforms(s, e, np.array([i]), v, 1)[0, 0] for s, e, i, v in keys}
    assert len(firsts) == 81


def test_draws_are_those_of_earlier_versions() -> None:
    """Bits of the draws and pixels of the boxes that records were made with."""
    draws = pixels.uniforms(3, 2, np.array([0, 7, 50_000]), 1, pixels.CROP_DRAWS)
    assert (draws[:, [0, 21]] * 2**53).astype(np.int64).tolist() == DRAWS
    boxes = pixels.crop_boxes(draws, 96, 128, area=(0.08, 1.0), aspect=(3 / 4, 4 / 3))
    assert boxes.T.tolist() == BOXES
    sides = np.array([20, 300, 96]), np.array([300, 20, 128])
    boxes = pixels.crop_boxes(draws, *sides, area=(0.5, 1.0), aspect=(3 / 4, 4 / 3))
    assert boxes.T.tolist() == BOXES_OF_SIDES


def test_factors_lie_within_their_strengths_and_are_never_negative() -> None:
    ends = np.array([[0.0] * 4, [1.0] * 4, [0.5] * 4])
    found = pixels.jitter_factors(ends, (0.4, 1.5, 0.0, 0.1))
    expected = [[0.6, 0.0, 1.0, -0.1], [1.4, 2.5, 1.0, 0.1], [1.0, 1.25, 1.0, 0.0]]
    np.testing.assert_allclose(found, expected, atol=1e-15)


def test_jitters_are_those_of_a_loop() -> None:
    order = np.array(list(itertools.permutations(range(4))))
    jitter = np.arange(24) % 3 > 0
    factors = np.random.default_rng(0).random((24, 4))
    found = pixels.jitters(jitter, factors, order)
    assert sorted(found.index) == np.flatnonzero(jitter).tolist()
    ahead = [order[image].tolist().index(3) for image in found.index]
    assert ahead == sorted(ahead, reverse=True)
    assert found.before == tuple(sum(each > turn for each in ahead) for turn in range(3))
    for image in range(24):
        hue = order[image].tolist().index(3)
        turns = [*enumerate(order[image, :hue]), *enumerate(order[image, hue + 1 :], start=3)]
        for turn, operation in turns:
            factor = factors[image, operation].astype(np.float32)
            share = 0.0 if operation == 0 else np.float32(1) - factor
            row = found.numbers[3 * turn : 3 * turn + 3, image]
            assert row.tolist() == [factor, share, operation == 1]
        assert found.numbers[18, image] == factors[image, 3].astype(np.float32)


# What is done


def images(count: int = 12, frames: int = 3, side: int = 17) -> Tensor:
    """Clips (B, 3, T, S, S): noise, gray, black, white, saturated, noise..."""
    batch = torch.rand(count, 3, frames, side, side + 2, generator=torch.Generator().manual_seed(0))
    batch[1] = batch[1, :1]
    batch[2], batch[3] = 0, 1
    batch[4] = (batch[4] > 0.5).float()
    return batch


NUMBER = torch.linspace(-0.4, 1.6, 12)
POSITIVE = NUMBER.abs() + 0.1
BOX = (torch.full((12,), 2.0), torch.arange(12.0) / 2, torch.full((12,), 9.0), POSITIVE * 5)


def blended(images: Tensor, factor: Tensor, operation: int) -> Tensor:
    """Brightness (0), contrast (1) or saturation (2), of a copy."""
    share = 1 - factor if operation else torch.zeros_like(factor)
    contrasted = torch.full_like(factor, operation == 1, dtype=torch.bool)
    return pixels.blend(images.clone(), factor, share, contrasted)


@pytest.mark.parametrize(
    "transform",
    [
        pixels.flip,
        lambda x: blended(x, POSITIVE, 0),
        lambda x: blended(x, POSITIVE, 1),
        lambda x: blended(x, POSITIVE, 2),
        lambda x: pixels.hue(x, NUMBER),
        lambda x: pixels.hue(x, NUMBER, fused=True),
        pixels.grayscale,
        lambda x: pixels.gaussian_blur(x, POSITIVE, 5),
        lambda x: pixels.resized_crop(x, *BOX, 8),
        lambda x: pixels.resized_crop(x, *BOX, 8, pixels.cubic),
        lambda x: pixels.normalise(x.clone(), (0.1, 0.2, 0.3), (0.5, 0.6, 0.7)),
    ],
)
def test_a_clip_is_transformed_as_its_frames(transform: Callable[[Tensor], Tensor]) -> None:
    clips = images()
    found = transform(clips)
    for frame in range(clips.shape[2]):
        expected = transform(clips[:, :, frame])
        # Products of matrices sum in an order that depends on their shapes.
        torch.testing.assert_close(found[:, :, frame], expected, atol=2e-7, rtol=0)


@pytest.mark.parametrize(
    ("mean", "deviation"),
    [
        ((0.5,), (0.2,)),  # not one for each channel
        ((0.5,) * 3, (0.2, 0.0, 0.2)),
        ((125.0, 120.0, 110.0), (60.0,) * 3),  # on the scale of bytes
    ],
)
def test_colours_of_another_number_or_scale_are_refused(
    mean: tuple[float, ...], deviation: tuple[float, ...]
) -> None:
    with pytest.raises(ValueError, match=r"mean|deviation"):
        pixels.normalise(torch.zeros(2, 3, 4, 4), mean, deviation)


def test_both_roundings_of_the_hue_are_kept() -> None:
    clips = images()
    twice = pixels.hue(clips, NUMBER)
    fused = pixels.hue(clips, NUMBER, fused=True)
    torch.testing.assert_close(fused, twice, atol=2e-7, rtol=0)
    red, green, blue = clips.unbind(1)
    high = red.maximum(green).maximum(blue)
    chroma = high - red.minimum(green).minimum(blue)
    lack = ((high[:, None] - twice) / chroma[:, None].clamp(min=1e-30)).clamp(0, 1)
    assert float(lack[0].min()) == 0  # the highest channel stays as high as it was
    assert float(lack[0].max()) == pytest.approx(1, abs=1e-5)


def test_what_is_sent_arrives_as_numbers_and_indices() -> None:
    rows = np.array([[0.1, 2.0, -3.0], [7, 2**23 + 1, 0]])
    masks = {"some": np.array([True, False, True]), "none": np.zeros(3, bool)}
    sent = pixels.send(
        {"sigma": rows[0], "rows": rows}, {**masks, "index": np.array([2, 0])}, torch.device("cpu")
    )
    assert sent["rows"].dtype == torch.float32
    assert torch.equal(sent["rows"], torch.tensor(rows, dtype=torch.float32))
    indices = [sent[name].tolist() for name in ("some", "none", "index")]
    assert indices == [[0, 2], [], [2, 0]]
    batch = torch.zeros(3, 2)
    pixels.replace(batch, sent["some"], lambda x, number: x + number[:, None], sent["sigma"])
    pixels.replace(batch, sent["none"], lambda some: some / 0)
    assert torch.equal(batch, torch.tensor([0.1, 0.0, -3.0])[:, None].expand(3, 2))


def jittered(batch: torch.Tensor, *drawn: np.ndarray) -> torch.Tensor:
    """A copy of the images after the colour jitter of :func:`shared.pixels.jitters`."""
    plan, batch = pixels.jitters(*drawn), batch.clone()
    sent = pixels.send({"colours": plan.numbers}, {"jitter": plan.index}, batch.device)
    pixels.colour_jitter(batch, sent["jitter"], sent["colours"], plan.before)
    return batch


def test_jitter_takes_each_image_through_its_own_order() -> None:
    batch = images()[:, :, 0]
    order = np.array(list(itertools.permutations(range(4)))[:12])
    jitter = np.arange(12) != 5
    factors = [POSITIVE, POSITIVE.flip(0), POSITIVE + 0.2, NUMBER / 4]
    found = jittered(batch, jitter, torch.stack(factors, 1).numpy(), order)
    for image in range(12):
        expected = batch[image : image + 1]
        for operation in order[image] if jitter[image] else ():
            factor = factors[operation][image : image + 1]
            if operation == 3:
                expected = pixels.hue(expected, factor)
            else:
                expected = blended(expected, factor, operation)
        assert torch.equal(found[image : image + 1], expected)


def test_no_jitter_leaves_images_alone() -> None:
    batch = images()[:, :, 0]
    order = np.arange(48).reshape(12, 4) % 4
    assert torch.equal(jittered(batch, np.zeros(12, bool), np.ones((12, 4)), order), batch)


def test_jittered_pixels_are_those_of_earlier_versions() -> None:
    """As operations in 16 masks, one for each turn and operation, gave them."""
    batch = torch.arange(96).view(2, 3, 4, 4).remainder(9) / 8
    factors = np.array([[0.5, 1.5, 0.25, 0.25], [1.5, 0.5, 1.75, -0.125]])
    found = jittered(batch, np.ones(2, bool), factors, np.array([[0, 3, 2, 1], [2, 1, 3, 0]]))
    assert found[:, :, 0, :2].flatten().tolist() == pytest.approx(JITTERED, abs=1e-6)


def test_values_from_128_on_are_inverted() -> None:
    found = pixels.solarize(torch.tensor([127.0, 128.0, 129.0]) / 255)
    assert (255 * found).round().tolist() == [127, 127, 126]
