"""Clips out of videos, and what is done to them on the device that holds them.

Shapes: n videos, B clips of a batch, T frames of a clip, h x w pixels of a stored frame, S side of
a clip in pixels, K taps of the blur, W windows of a video.

What happens to a clip is a pure function of (seed, epoch, video, view), whatever the batch and the
device, and the same for all of its frames. The numbers are drawn on the host, which therefore knows
which clip needs which transform, and the device is never waited for.

The policies are those of [CoCLR], Han et al. 2020, and its program. Where they differ from it:
crops are drawn as torchvision draws them (the logarithm of the aspect is uniform, and a box that
does not fit is drawn again, where the program squeezes the whole frame); the channel that gray
frames are made of is drawn once for a clip, not for each frame; the last start of a clip can occur;
the rounding to 8 bits between two transforms is left out; and flow gets a policy of its own, since
the program turns the colours of a flow, and mirrors it without its direction.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from video.config import Config

if TYPE_CHECKING:
    from video.data import Videos

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of ImageNet, for flow too; [CoCLR]

AREA = (0.2, 1.0)  # of the crop, as a share of the frame
ASPECT = (3 / 4, 4 / 3)  # width over height of the crop
FLIP = 0.5
JITTER = (0.4, 0.4, 0.4, 0.1)  # brightness, contrast, saturation, and hue in turns
JITTERED = 0.8
GRAY = 0.2
BLUR = 0.5
PROBE_JITTERED = 0.3  # share of a probe's training clips with jittered colours
SIGMA = (0.1, 2.0)  # pixels
# The program's blur is PIL's, which at the largest sigma reaches 6 pixels to each side.
TAPS = 13

ONE_CLIP = 0.5  # share of the videos whose two views are views of the same clip
STRONG = 0.3  # share of strong views where the clips differ; of one clip's two views, one is strong

POLICIES = ("weak", "strong", "coclr", "probe", "flow")


@dataclass(frozen=True)
class Parameters:
    """What happens to each of B clips.

    Attributes:
        box: (4, B) int64: top, left, height and width of the crop, in pixels.
        flip: (B,) bool.
        factors: (4, B) float64, of brightness, contrast, saturation and hue.
        order: (B, 4) int64, ``order[:, 0]`` is the row of ``factors`` that comes first.
        jitter: (B,) bool, whether these take place.
        channel: (B,) int64, the one that gray frames are made of.
        gray: (B,) bool.
        sigma: (B,) float64, in pixels.
        blur: (B,) bool.
    """

    box: np.ndarray
    flip: np.ndarray
    factors: np.ndarray
    order: np.ndarray
    jitter: np.ndarray
    channel: np.ndarray
    gray: np.ndarray
    sigma: np.ndarray
    blur: np.ndarray


def views(
    videos: "Videos",
    index: Tensor,
    config: Config,
    epoch: int,
    *,
    device: torch.device | None = None,
) -> tuple[Tensor, Tensor]:
    """The two views (B, 3, T, S, S) of each video that are a pair in this epoch.

    Args:
        videos: n videos.
        index: (B,) int64, which of them.
        config: its ``clip_frames``, ``size``, ``modality``, ``policy``, ``sampling`` and ``seed``
            count.
        epoch: number of the epoch.
        device: where to augment; None: where the frames are.
    """
    device = videos.frames.device if device is None else device
    policy = "flow" if config.modality == "flow" else config.policy
    starts = sample_clips(
        videos,
        index,
        config.clip_frames,
        seed=config.seed,
        epoch=epoch,
        sampling=config.sampling,
    )
    first, second = (
        augment(
            _to(gather_clips(videos, index, start, config.clip_frames), device),
            config.size,
            seed=config.seed,
            epoch=epoch,
            samples=index,
            view=view,
            policy=policy,
            sampling=config.sampling,
        )
        for view, start in enumerate(starts)
    )
    return first, second


def sample_clips(
    videos: "Videos", index: Tensor, clip_frames: int, *, seed: int, epoch: int, sampling: str
) -> tuple[Tensor, Tensor]:
    """First frames (B,), (B,) int64 of two clips of each video, within the video.

    All starts are equally likely; that of a video shorter than a clip is 0.

    Args:
        videos: n videos.
        index: (B,) int64, which of them.
        clip_frames: T.
        seed: seed of the run.
        epoch: number of the epoch.
        sampling: "two_clips", or "coclr": for half of the videos both clips are the same.

    Raises:
        ValueError: an unknown sampling.
    """
    draws = uniforms(seed, epoch, index, _PAIR, 3)
    room = (videos.length.cpu()[index.cpu()].numpy() - clip_frames).clip(min=0)
    first, second = ((draws[:, column] * (room + 1)).astype(np.int64) for column in (1, 2))
    second = np.where(_one_clip(draws, sampling), first, second)
    return torch.from_numpy(first), torch.from_numpy(second)


def gather_clips(videos: "Videos", index: Tensor, start: Tensor, clip_frames: int) -> Tensor:
    """Clips (B, 3, T, h, w) uint8 on the device of the frames.

    A video shorter than a clip is preceded by copies of its first frame; [CoCLR].

    Args:
        videos: n videos.
        index: (B,) int64, of which videos.
        start: (B,) int64, first frame within the video.
        clip_frames: T.

    Raises:
        ValueError: a clip that begins before its video does, or ends after it.
    """
    index, start = index.cpu(), start.cpu()
    length = videos.length.cpu()[index]
    lack = (clip_frames - length).clamp(min=0)
    if bool(((start < 0) | (start > length - clip_frames + lack)).any()):
        raise ValueError(f"clips of {clip_frames} frames that start outside of their videos")
    frame = (start - lack)[:, None] + torch.arange(clip_frames)
    frame = videos.start.cpu()[index, None] + frame.clamp(min=0)
    clips: Tensor = videos.frames[_to(frame.flatten(), videos.frames.device)]
    return clips.view(len(index), clip_frames, *clips.shape[1:]).transpose(1, 2)


def augment(
    clips: Tensor,
    size: int,
    *,
    seed: int,
    epoch: int,
    samples: Tensor,
    view: int,
    policy: str,
    sampling: str = "coclr",
) -> Tensor:
    """The view (B, 3, T, S, S) float32 of each clip, normalised by ImageNet's mean and deviation.

    Args:
        clips: (B, 3, T, h, w) uint8, on the device that is to do the work.
        size: S.
        seed: seed of the run.
        epoch: number of the epoch.
        samples: (B,) int64, number of each clip's video.
        view: number of the view, 0 or 1 of a pair.
        policy: "weak": crop and flip; "strong": also colour jitter, gray and blur; "coclr": weak
            or strong, drawn for each pair; "probe": weak, and colour jitter now and then; "flow":
            weak, and a flip exchanges left and right in the flow's first channel, too.
        sampling: of the two clips, see :func:`sample_clips`; decides which are strong in "coclr".

    Raises:
        ValueError: clips of another type or shape, samples of another length, or an unknown policy
            or sampling.
    """
    if clips.dtype != torch.uint8 or clips.dim() != 5 or clips.size(1) != 3:
        kind = str(clips.dtype).removeprefix("torch.")
        raise ValueError(f"clips must be (B, 3, T, h, w) uint8, got {tuple(clips.shape)} {kind}")
    if len(samples) != len(clips):
        raise ValueError(f"{len(clips)} clips but {len(samples)} samples")
    height, width = clips.shape[-2:]
    drawn = parameters(
        policy, seed, epoch, samples, view, height=height, width=width, sampling=sampling
    )
    device = clips.device
    with torch.autocast(device.type, enabled=False):  # pixels need more than 8 bits
        batch = resized_crop(clips, _to(torch.from_numpy(drawn.box), device), size)
        _replace(batch, drawn.flip, flip_flow if policy == "flow" else flip)
        factors = _to(torch.from_numpy(drawn.factors).float(), device)
        for turn in range(4):
            for row, operation in enumerate(_JITTER):
                chosen = drawn.jitter & (drawn.order[:, turn] == row)
                _replace(batch, chosen, operation, factors[row])
        _replace(batch, drawn.gray, gray, _to(torch.from_numpy(drawn.channel), device))
        _replace(batch, drawn.blur, blur, _to(torch.from_numpy(drawn.sigma).float(), device))
        return _normalise(batch)


def parameters(
    policy: str,
    seed: int,
    epoch: int,
    samples: Tensor,
    view: int,
    *,
    height: int,
    width: int,
    sampling: str = "coclr",
) -> Parameters:
    """What a policy does to each clip: a pure function of (seed, epoch, sample, view).

    The crop follows torchvision's RandomResizedCrop: ten attempts at an area and the logarithm of
    an aspect, then the largest central box of an allowed aspect.

    Args:
        policy: of ``POLICIES``.
        seed: seed of the run.
        epoch: number of the epoch.
        samples: (B,) int64, number of each clip's video.
        view: number of the view, 0 or 1 of a pair.
        height: h.
        width: w.
        sampling: see :func:`sample_clips`.

    Raises:
        ValueError: an unknown policy or sampling.
    """
    if policy not in POLICIES:
        raise ValueError(f"policy must be one of {', '.join(POLICIES)}, got {policy!r}")
    draws = uniforms(seed, epoch, samples, view, _CROP_DRAWS + 14)
    crop, draws = np.split(draws, [_CROP_DRAWS], axis=1)
    strong = np.full(len(draws), policy == "strong")
    if policy == "coclr":
        pair = uniforms(seed, epoch, samples, _PAIR, 4)
        strong = np.where(
            _one_clip(pair, sampling), (pair[:, 3] < 0.5) == (view == 0), draws[:, 0] < STRONG
        )
    jittered = np.where(strong, JITTERED, PROBE_JITTERED if policy == "probe" else 0.0)
    low = [*(1 - strength for strength in JITTER[:3]), -JITTER[3]]
    high = [*(1 + strength for strength in JITTER[:3]), JITTER[3]]
    return Parameters(
        box=_boxes(crop, height, width),
        flip=draws[:, 1] < FLIP,
        factors=(low + draws[:, 2:6] * np.subtract(high, low)).T,
        order=draws[:, 6:10].argsort(axis=1),
        jitter=draws[:, 10] < jittered,
        # One draw says both whether and which: its place below the threshold is uniform, too.
        channel=(draws[:, 11] / GRAY * 3).astype(np.int64).clip(max=2),
        gray=strong & (draws[:, 11] < GRAY),
        sigma=SIGMA[0] + draws[:, 12] * (SIGMA[1] - SIGMA[0]),
        blur=strong & (draws[:, 13] < BLUR),
    )


def uniforms(seed: int, epoch: int, samples: Tensor, view: int, count: int) -> np.ndarray:
    """Draws (B, count) float64 from [0, 1): row b is a function of (seed, epoch, samples[b], view).

    Each row is a stream of SplitMix64 (Steele et al. 2014, "Fast Splittable Pseudorandom Number
    Generators"), started at a hash of these four.
    """
    state = np.zeros(1, np.uint64)
    for part in (seed, epoch, view, samples.cpu().numpy()):
        state = _mix(state + _STEP + np.asarray(part, np.int64).astype(np.uint64))
    steps = np.arange(1, count + 1, dtype=np.uint64) * _STEP
    words = _mix(state[:, None] + steps)
    return (words >> np.uint64(11)).astype(np.float64) * 2.0**-53


# Of clips at test


def windows(length: int, clip_frames: int, most: int | None = None) -> Tensor:
    """First frames (W,) int64 of the windows of a video, about half a clip apart; at least one.

    The stride is [CoCLR]'s: one frame less than half of a clip. Where that gives more windows than
    ``most``, there are so many, evenly spread over the video.
    """
    last = max(length - clip_frames, 0)
    starts = torch.arange(0, last + 1, max(clip_frames // 2 - 1, 1))
    if most is None or len(starts) <= most:
        return starts
    # Integers: half-way cases of a rounded linspace would depend on the processor.
    return torch.arange(most) * last // max(most - 1, 1)


def centre(clips: Tensor, size: int) -> Tensor:
    """The largest central square (B, 3, T, S, S) float32 of clips, normalised.

    clips: (B, 3, T, h, w) uint8.
    """
    height, width = clips.shape[-2:]
    side = min(height, width)
    return _normalise(_square(clips, (height - side) // 2, (width - side) // 2, side, size))


def ten_crops(
    clips: Tensor, size: int, *, mirror: Callable[[Tensor], Tensor] | None = None
) -> Tensor:
    """The corners, the centre, and the same mirrored: (10, B, 3, T, S, S) float32, normalised.

    The crops' side is 7/8 of the frame's short side: 224 of 256 pixels in [CoCLR].

    clips: (B, 3, T, h, w) uint8. mirror: :func:`flip`, which is the default, or :func:`flip_flow`.
    """
    mirror = mirror or flip
    height, width = clips.shape[-2:]
    side = round(min(height, width) * 7 / 8)
    bottom, right = height - side, width - side
    places = [(0, 0), (0, right), (bottom, 0), (bottom, right), (bottom // 2, right // 2)]
    five = [_square(clips, top, left, side, size) for top, left in places]
    return torch.stack([_normalise(crop) for crop in (*five, *map(mirror, five))])


# The transforms


def resized_crop(clips: Tensor, box: Tensor, size: int) -> Tensor:
    """Boxes of (B, 3, T, h, w) uint8 clips as (B, 3, T, S, S) float32 in [0, 1].

    Bicubic with antialias, as torchvision and PIL resize a box that was cut out before.

    box: (4, B) of top, left, height and width, in pixels.
    """
    top, left, height, width = box
    rows = _resize_weights(top, height, clips.size(3), size)
    columns = _resize_weights(left, width, clips.size(4), size)
    return _filter(clips.float().mul_(1 / 255), rows, columns).clamp_(0, 1)


def flip(clips: Tensor) -> Tensor:
    """Clips (B, 3, T, H, W) with left and right exchanged."""
    return clips.flip(-1)


def flip_flow(clips: Tensor) -> Tensor:
    """Flow (B, 3, T, H, W) in [0, 1] with left and right exchanged, in its first channel too."""
    clips = clips.flip(-1)
    clips[:, 0].neg_().add_(1)
    return clips


def brightness(clips: Tensor, factor: Tensor) -> Tensor:
    """Clips (B, 3, T, H, W) times their factor (B,)."""
    return (clips * _per_clip(factor)).clamp_(0, 1)


def contrast(clips: Tensor, factor: Tensor) -> Tensor:
    """Clips (B, 3, T, H, W) moved away from each frame's mean gray by their factor (B,)."""
    return _blend(clips, _luma(clips).mean((1, 3, 4), keepdim=True), factor)


def saturation(clips: Tensor, factor: Tensor) -> Tensor:
    """Clips (B, 3, T, H, W) moved away from their gray version by their factor (B,)."""
    return _blend(clips, _luma(clips), factor)


def hue(clips: Tensor, factor: Tensor) -> Tensor:
    """Clips (B, 3, T, H, W) with hues turned by their factor (B,), in turns of the HSV circle."""
    red, green, blue = clips.unbind(1)
    high = red.maximum(green).maximum(blue)
    chroma = high - red.minimum(green).minimum(blue)
    # Gray has no hue: its numerators are 0, and so is the chroma that its hue goes with.
    divisor = chroma.clamp(min=torch.finfo(chroma.dtype).tiny)
    angle = torch.where(
        high == red,
        (green - blue) / divisor,
        torch.where(high == green, (blue - red) / divisor + 2, (red - green) / divisor + 4),
    )
    angle += 6 * factor[:, None, None, None]
    # Each channel falls from full to none and rises again on its own third of the circle.
    turned = torch.empty_like(clips)
    for channel, offset in enumerate((5, 3, 1)):
        lack = (angle + offset).remainder_(6).sub_(2).abs_().neg_().add_(2).clamp_(0, 1)
        torch.addcmul(high, lack, chroma, value=-1, out=turned[:, channel])
    return turned


def gray(clips: Tensor, channel: Tensor) -> Tensor:
    """Clips (B, 3, T, H, W) with one channel (B,) of each in all three; not luma: [CoCLR]."""
    return clips[torch.arange(len(clips), device=clips.device), channel, None].expand_as(clips)


def blur(clips: Tensor, sigma: Tensor) -> Tensor:
    """Clips (B, 3, T, H, W) blurred within each frame by their sigma (B,), borders reflected.

    Raises:
        ValueError: frames that end before the blur does.
    """
    if TAPS // 2 >= min(clips.shape[-2:]):
        height, width = clips.shape[-2:]
        raise ValueError(f"{height} x {width} pixels are too few for a blur of {TAPS}")
    offset = torch.arange(TAPS, device=clips.device) - TAPS // 2
    taps = torch.softmax(-(offset**2) / (2 * sigma[:, None] ** 2), dim=1)
    rows, columns = (_reflected(taps, offset, side) for side in clips.shape[-2:])
    return _filter(clips, rows, columns)


_JITTER = (brightness, contrast, saturation, hue)  # as the rows of Parameters.factors

_PAIR = -1  # in place of a view: draws that concern both views of a pair
_ATTEMPTS = 10  # at a crop, before torchvision resorts to the centre
_CROP_DRAWS = 2 * _ATTEMPTS + 2
_STEP = np.uint64(0x9E3779B97F4A7C15)


def _one_clip(pair: np.ndarray, sampling: str) -> np.ndarray:
    """Whether (B,) both views are of one clip, by the draws (B, ...) that concern the pair."""
    if sampling not in ("coclr", "two_clips"):
        raise ValueError(f"sampling must be coclr or two_clips, got {sampling!r}")
    return (pair[:, 0] < ONE_CLIP) & (sampling == "coclr")


def _mix(words: np.ndarray) -> np.ndarray:
    """The finaliser of SplitMix64: every bit of a word changes about half of the bits."""
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    words ^= words >> np.uint64(31)
    return words


def _boxes(draws: np.ndarray, height: int, width: int) -> np.ndarray:
    """Top, left, height and width (4, B) int64 of the crops.

    draws: (B, 22), of the areas of all attempts, of their aspects, of the row and of the column.
    """
    areas, aspects, places = np.split(draws, [_ATTEMPTS, 2 * _ATTEMPTS], axis=1)
    areas = height * width * (AREA[0] + areas * (AREA[1] - AREA[0]))
    narrow, wide = np.log(ASPECT)
    aspects = np.exp(narrow + aspects * (wide - narrow))
    heights, widths = np.rint(np.sqrt(areas / aspects)), np.rint(np.sqrt(areas * aspects))
    fits = (heights > 0) & (heights <= height) & (widths > 0) & (widths <= width)

    found, first = fits.any(1), (np.arange(len(fits)), fits.argmax(1))
    box_height = np.where(found, heights[first], round(min(height, width / ASPECT[0])))
    box_width = np.where(found, widths[first], round(min(width, height * ASPECT[1])))
    top, left = (
        np.where(found, np.floor(place * (room + 1)), room // 2)
        for place, room in zip(places.T, (height - box_height, width - box_width), strict=True)
    )
    return np.stack((top, left, box_height, box_width)).astype(np.int64)


def _to(numbers: Tensor, device: torch.device) -> Tensor:
    """Numbers of the host or the device on ``device``, by a copy that nobody awaits."""
    if device.type == "cuda" and numbers.device.type == "cpu":
        return numbers.pin_memory().to(device, non_blocking=True)
    return numbers.to(device)


def _replace(
    clips: Tensor, chosen: np.ndarray, transform: Callable[..., Tensor], *numbers: Tensor
) -> None:
    """Transform in place the ``chosen`` (B,) clips, by their own of the ``numbers`` (B,)."""
    if chosen.any():
        index = _to(torch.from_numpy(np.flatnonzero(chosen)), clips.device)
        some = transform(clips.index_select(0, index), *(number[index] for number in numbers))
        clips.index_copy_(0, index, some)


def _square(clips: Tensor, top: int, left: int, side: int, size: int) -> Tensor:
    """The same square of all clips, (B, 3, T, S, S) float32 in [0, 1]."""
    clips = clips[..., top : top + side, left : left + side]
    box = torch.tensor([[0], [0], [side], [side]])
    return resized_crop(clips, _to(box, clips.device).expand(-1, len(clips)), size)


def _normalise(clips: Tensor) -> Tensor:
    """Clips (B, 3, ...) less ImageNet's mean, divided by its deviation, in place."""
    for channel, (mean, deviation) in enumerate(zip(MEAN, STD, strict=True)):
        clips[:, channel].sub_(mean).div_(deviation)
    return clips


def _resize_weights(start: Tensor, length: Tensor, side: int, size: int) -> Tensor:
    """Weights (B, size, side) of each pixel's row or column in those of the resized box.

    Keys' cubic with a = -1/2, four pixels wide of the coarser of the two grids, cut off at the box.
    """
    start, length = start[:, None, None], length[:, None, None]
    scale = length / size
    center = scale * (torch.arange(size, device=start.device)[:, None] + 0.5)
    position = torch.arange(side, device=start.device) + 0.5 - start
    far = (position - center).abs_().div_(scale.clamp(min=1))
    near = ((1.5 * far - 2.5) * far * far).add_(1)
    tail = (((2.5 - 0.5 * far) * far - 4) * far).add_(2)
    weights = torch.where(far < 1, near, torch.where(far < 2, tail, 0.0))
    weights *= (position > 0) & (position < length)
    return weights.div_(weights.sum(2, keepdim=True))


def _reflected(taps: Tensor, offset: Tensor, side: int) -> Tensor:
    """Taps (B, K) at their offsets (K,) as matrices (B, side, side), reflected at the borders."""
    here = torch.arange(side, device=taps.device)
    source = (here + offset[:, None]).abs()
    source = side - 1 - (side - 1 - source).abs()
    reads = (source.unsqueeze(2) == here).to(taps.dtype)
    return torch.mm(taps, reads.flatten(1)).view(-1, side, side)


def _filter(clips: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Clips (B, C, T, H, W) under matrices (B, S, H) of their rows and (B, S', W) of their columns.

    One product for each direction, as the filters of images are separable.
    """
    batch, channels, frames, height, width = clips.shape
    clips = torch.bmm(clips.reshape(batch, -1, width), columns.mT)
    clips = torch.matmul(rows[:, None], clips.view(batch, channels * frames, height, -1))
    return clips.view(batch, channels, frames, *clips.shape[-2:])


def _blend(clips: Tensor, base: Tensor, factor: Tensor) -> Tensor:
    """``factor * clips + (1 - factor) * base``, within [0, 1]."""
    factor = _per_clip(factor)
    return (clips * factor).add_((1 - factor) * base).clamp_(0, 1)


def _luma(clips: Tensor) -> Tensor:
    """Brightness (B, 1, T, H, W) of clips (B, 3, T, H, W), with the weights of ITU-R BT.601."""
    red, green, blue = clips.chunk(3, dim=1)
    return (red * 0.2989).add_(green, alpha=0.587).add_(blue, alpha=0.114)


def _per_clip(number: Tensor) -> Tensor:
    """Numbers (B,) as (B, 1, 1, 1, 1)."""
    return number[:, None, None, None, None]
