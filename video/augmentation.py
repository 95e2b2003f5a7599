"""Clips of videos and their augmentation, on the device that holds them.

Shapes: n videos, B clips of a batch, T frames of a clip, h x w pixels of a stored frame, S side of
a clip in pixels, K taps of the blur, W windows of a video.

The augmentation of a clip is a pure function of (seed, epoch, video, view), independent of batch
and device, and the same for all of its frames. Random numbers are drawn on the host, which
therefore knows which clip needs which transform and never waits for the device.

The policies are those of [CoCLR], Han et al. 2020, and its program. Where they differ from it:
crops are drawn as torchvision draws them (the logarithm of the aspect is uniform, and a box that
does not fit is drawn again, where the program squeezes the whole frame); the channel used for gray
frames is drawn once for a clip, not for each frame; the last possible start of a clip can occur;
values are not rounded to 8 bits between transforms; and flow has its own policy, since the program
jitters the colours of flow, and mirrors it without changing its direction.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from shared.pixels import (
    CROP_DRAWS,
    colour_jitter,
    crop_boxes,
    cubic,
    flip,
    gaussian_blur,
    jitter_factors,
    jitters,
    normalise,
    replace,
    resized_crop,
    send,
    to_device,
    uniforms,
)
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

OF_PYTORCHVIDEO = ("randaugment", "augmix")
_PAIR = -1  # in place of a view: draws that concern both views of a pair
POLICIES = ("weak", "strong", "coclr", "probe", "flow", *OF_PYTORCHVIDEO)


@dataclass(frozen=True)
class Parameters:
    """The augmentation of each of B clips."""

    box: np.ndarray  # (4, B) int64: top, left, height and width of the crop, in pixels
    flip: np.ndarray  # (B,) bool, as are jitter, gray and blur: whether it happens
    factors: np.ndarray  # (4, B) float64, of brightness, contrast, saturation and hue
    order: np.ndarray  # (B, 4) int64; order[:, 0] is the row of factors that comes first
    jitter: np.ndarray
    channel: np.ndarray  # (B,) int64, the one used for gray frames
    gray: np.ndarray
    sigma: np.ndarray  # (B,) float64, in pixels
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

    index: (B,) int64, which of the n videos. device: where to augment; None: where the frames are.
    Of the configuration ``clip_frames``, ``size``, ``modality``, ``policy``, ``sampling`` and
    ``seed`` are used.
    """
    device = videos.frames.device if device is None else device
    starts = sampled_starts(videos, index, config, epoch)
    clips = (
        to_device(gather_clips(videos, index, start, config.clip_frames), device)
        for start in starts
    )
    return augment_both(clips, config, epoch, index)


def sampled_starts(
    videos: "Videos", index: Tensor, config: Config, epoch: int
) -> tuple[Tensor, Tensor]:
    """:func:`sample_clips` as a configuration has it."""
    return sample_clips(
        videos,
        index,
        config.clip_frames,
        seed=config.seed,
        epoch=epoch,
        sampling=config.sampling,
    )


def augment_both(
    clips: Iterable[Tensor],
    config: Config,
    epoch: int,
    samples: Tensor,
    drawn: Sequence[Parameters | None] = (None, None),
) -> tuple[Tensor, Tensor]:
    """Both clips (B, 3, T, h, w) of each video as views, see :func:`augment`."""
    first, second = (
        augment(
            clip,
            config.size,
            seed=config.seed,
            epoch=epoch,
            samples=samples,
            view=view,
            policy=policy_of(config),
            sampling=config.sampling,
            drawn=known,
        )
        for view, (clip, known) in enumerate(zip(clips, drawn, strict=True))
    )
    return first, second


def policy_of(config: Config) -> str:
    """The policy of a configuration's training clips."""
    return "flow" if config.modality == "flow" else config.policy


def sample_clips(
    videos: "Videos", index: Tensor, clip_frames: int, *, seed: int, epoch: int, sampling: str
) -> tuple[Tensor, Tensor]:
    """First frames (B,), (B,) int64 of two clips of each video, within the video.

    All starts are equally likely; that of a video shorter than a clip is 0. With the sampling
    "two_clips" they are always drawn apart, with "coclr" both are the same for half of the videos.

    index: (B,) int64, which of the n videos. clip_frames: T.
    """
    draws = uniforms(seed, epoch, index.cpu().numpy(), _PAIR, 3)
    room = (videos.length.cpu()[index.cpu()].numpy() - clip_frames).clip(min=0)
    first, second = ((draws[:, column] * (room + 1)).astype(np.int64) for column in (1, 2))
    second = np.where(_one_clip(draws, sampling), first, second)
    return torch.from_numpy(first), torch.from_numpy(second)


def gather_clips(videos: "Videos", index: Tensor, start: Tensor, clip_frames: int) -> Tensor:
    """Clips (B, 3, T, h, w) uint8 on the device of the frames.

    A video shorter than a clip is preceded by copies of its first frame; [CoCLR].

    index: (B,) int64, of which videos. start: (B,) int64, first frame within the video.
    clip_frames: T.
    """
    first, lack = first_frames(videos, index, start, clip_frames)
    frames = videos.frames
    shape = (len(index), clip_frames, *frames.shape[1:])
    if frames.device.type != "cpu":
        frame = first[:, None] + (torch.arange(clip_frames) - lack[:, None]).clamp(min=0)
        return frames[to_device(frame.flatten(), frames.device)].view(shape).transpose(1, 2)
    clips = torch.empty(shape, dtype=frames.dtype)
    box = np.array([0, 0, *frames.shape[-2:]])
    for clip, begin, copies in zip(clips.numpy(), first.tolist(), lack.tolist(), strict=True):
        copy_clip(clip, frames.numpy(), begin, copies, box)
    return clips.transpose(1, 2)


def first_frames(
    videos: "Videos", index: Tensor, start: Tensor, clip_frames: int
) -> tuple[Tensor, Tensor]:
    """First frame of each clip among all frames, and how many it lacks: (B,), (B,) int64.

    For the arguments see :func:`gather_clips`.
    """
    index, start = index.cpu(), start.cpu()
    length = videos.length.cpu()[index]
    lack = (clip_frames - length).clamp(min=0)
    if bool(((start < 0) | (start > length - clip_frames + lack)).any()):
        raise ValueError(f"clips of {clip_frames} frames that start outside of their videos")
    return videos.start.cpu()[index] + start, lack


def copy_clip(clip: np.ndarray, frames: np.ndarray, first: int, lack: int, box: np.ndarray) -> None:
    """Copy a box of consecutive frames (F, 3, h, w) to where it lies in a clip (T, 3, h, w).

    Frame by frame, numpy copies a slice several times as fast as frames at an index, and other
    threads can work meanwhile. Outside of the box the clip is not written to.

    first: number of the first frame. lack: frames that are copies of the first one, which they
    precede. box: top, left, height and width in pixels.
    """
    top, left, height, width = box.tolist()
    part = np.s_[:, :, top : top + height, left : left + width]
    clip[:lack][part] = frames[first : first + 1][part]
    clip[lack:][part] = frames[first : first + len(clip) - lack][part]


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
    drawn: Parameters | None = None,
) -> Tensor:
    """The view (B, 3, T, S, S) float32 of each clip, normalised by ImageNet's mean and deviation.

    Policies: "weak": crop and flip; "strong": also colour jitter, gray and blur; "coclr": weak or
    strong, drawn for each pair; "probe": weak, and colour jitter now and then; "flow": weak, and a
    flip exchanges left and right in the flow's first channel, too; "randaugment" and "augmix":
    weak, and what pytorchvideo calls so.

    clips: (B, 3, T, h, w) uint8, on the device that is to do the work. samples: (B,) int64, number
    of each clip's video. view: 0 or 1 of a pair. sampling: of the two clips, see
    :func:`sample_clips`; decides which are strong in "coclr". drawn: what :func:`parameters` gives
    for all of these, where that is known.
    """
    if clips.dtype != torch.uint8 or clips.dim() != 5 or clips.size(1) != 3:
        kind = str(clips.dtype).removeprefix("torch.")
        raise ValueError(f"clips must be (B, 3, T, h, w) uint8, got {tuple(clips.shape)} {kind}")
    if len(samples) != len(clips):
        raise ValueError(f"{len(clips)} clips but {len(samples)} samples")
    height, width = clips.shape[-2:]
    if drawn is None:
        drawn = parameters(
            policy, seed, epoch, samples, view, height=height, width=width, sampling=sampling
        )
    jitter = jitters(drawn.jitter, drawn.factors.T, drawn.order)
    sent = send(
        {
            "box": drawn.box,
            "channel": drawn.channel,
            "sigma": drawn.sigma,
            "colours": jitter.numbers,
        },
        {"flip": drawn.flip, "gray": drawn.gray, "blur": drawn.blur, "jitter": jitter.index},
        clips.device,
    )
    with torch.autocast(clips.device.type, enabled=False):  # pixels need more than 8 bits
        batch = _cropped(clips, sent["box"].unbind(), size)
        replace(batch, sent["flip"], flip_flow if policy == "flow" else flip)
        colour_jitter(batch, sent["jitter"], sent["colours"], jitter.before, fused=True)
        replace(batch, sent["gray"], gray, sent["channel"].long())
        replace(batch, sent["blur"], partial(gaussian_blur, kernel=TAPS), sent["sigma"])
        if policy in OF_PYTORCHVIDEO:
            from video.pytorchvideo import apply_policy

            batch = apply_policy(policy, batch, seed=seed, epoch=epoch, samples=samples, view=view)
        return normalise(batch, MEAN, STD)


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

    samples: (B,) int64, number of each clip's video. view: 0 or 1 of a pair. height, width: h and
    w. sampling: see :func:`sample_clips`.
    """
    if policy not in POLICIES:
        raise ValueError(f"policy must be one of {', '.join(POLICIES)}, got {policy!r}")
    numbers = samples.cpu().numpy()
    draws = uniforms(seed, epoch, numbers, view, CROP_DRAWS + 14)
    crop, draws = np.split(draws, [CROP_DRAWS], axis=1)
    strong = np.full(len(draws), policy == "strong")
    if policy == "coclr":
        pair = uniforms(seed, epoch, numbers, _PAIR, 4)
        strong = np.where(
            _one_clip(pair, sampling), (pair[:, 3] < 0.5) == (view == 0), draws[:, 0] < STRONG
        )
    jittered = np.where(strong, JITTERED, PROBE_JITTERED if policy == "probe" else 0.0)
    return Parameters(
        box=crop_boxes(crop, height, width, area=AREA, aspect=ASPECT),
        flip=draws[:, 1] < FLIP,
        factors=jitter_factors(draws[:, 2:6], JITTER).T,
        order=draws[:, 6:10].argsort(axis=1),
        jitter=draws[:, 10] < jittered,
        # One draw says both whether and which: its place below the threshold is uniform, too.
        channel=(draws[:, 11] / GRAY * 3).astype(np.int64).clip(max=2),
        gray=strong & (draws[:, 11] < GRAY),
        sigma=SIGMA[0] + draws[:, 12] * (SIGMA[1] - SIGMA[0]),
        blur=strong & (draws[:, 13] < BLUR),
    )


# Of clips at test


def windows(
    length: int, clip_frames: int, most: "int | Callable[[int, int], Tensor] | None" = None
) -> Tensor:
    """First frames (W,) int64 of the windows of a video, about half a clip apart; at least one.

    The stride is [CoCLR]'s: one frame less than half of a clip. If that gives more windows than
    ``most``, that many are spread evenly over the video. A function given as ``most`` returns them.
    """
    last = max(length - clip_frames, 0)
    if callable(most):
        return most(length, clip_frames)
    starts = torch.arange(0, last + 1, max(clip_frames // 2 - 1, 1))
    if most is None or len(starts) <= most:
        return starts
    # Integers: half-way cases of a rounded linspace would depend on the processor.
    return torch.arange(most) * last // max(most - 1, 1)


def centre(clips: Tensor, size: int, share: float = 1.0) -> Tensor:
    """The central square (B, 3, T, S, S) float32 of clips, normalised.

    clips: (B, 3, T, h, w) uint8. share: of the frame's short side.
    """
    height, width = clips.shape[-2:]
    side = round(min(height, width) * share)
    middle = _square(clips, (height - side) // 2, (width - side) // 2, side, size)
    return normalise(middle, MEAN, STD)


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
    corners = [(0, 0), (0, right), (bottom, 0), (bottom, right), (bottom // 2, right // 2)]
    five = [_square(clips, top, left, side, size) for top, left in corners]
    return torch.stack([normalise(crop, MEAN, STD) for crop in (*five, *map(mirror, five))])


def flip_flow(clips: Tensor) -> Tensor:
    """Flow (B, 3, T, H, W) in [0, 1] with left and right exchanged, in its first channel too."""
    clips = clips.flip(-1)
    clips[:, 0].neg_().add_(1)
    return clips


def gray(clips: Tensor, channel: Tensor) -> Tensor:
    """Clips (B, 3, T, H, W) with one channel (B,) of each in all three; not luma: [CoCLR]."""
    return clips[torch.arange(len(clips), device=clips.device), channel, None].expand_as(clips)


def _one_clip(pair: np.ndarray, sampling: str) -> np.ndarray:
    """Whether (B,) both views are of one clip, by the draws (B, ...) that concern the pair."""
    if sampling not in ("coclr", "two_clips"):
        raise ValueError(f"sampling must be coclr or two_clips, got {sampling!r}")
    return (pair[:, 0] < ONE_CLIP) & (sampling == "coclr")


def _square(clips: Tensor, top: int, left: int, side: int, size: int) -> Tensor:
    """The same square of all clips, (B, 3, T, S, S) float32 in [0, 1]."""
    clips = clips[..., top : top + side, left : left + side]
    start, length = (
        clips.new_full((len(clips),), number, dtype=torch.float32) for number in (0, side)
    )
    return _cropped(clips, (start, start, length, length), size)


def _cropped(clips: Tensor, box: Sequence[Tensor], size: int) -> Tensor:
    """Boxes of (B, 3, T, h, w) uint8 clips as (B, 3, T, S, S) float32 in [0, 1], bicubic.

    box: top, left, height and width, (B,) each.
    """
    top, left, height, width = box
    images = clips.float().mul_(1 / 255)
    return resized_crop(images, top, left, height, width, size, cubic).clamp_(0, 1)
