"""Networks, clip samplers, augmentation policies and datasets of pytorchvideo (an extra).

Decoding is this project's, which is faster and strict about damage.

Shapes: B clips, T frames of a clip, S side in pixels, W windows of a video.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from shared.experiment.compat import make_pytorchvideo_importable

# Its builders by name; MViT's is the one for 16 frames, built for the configuration's clips.
NETWORKS = (
    "x3d_xs",
    "x3d_s",
    "x3d_m",
    "x3d_l",
    "slow_r50",
    "csn_r101",
    "r2plus1d_r50",
    "mvit_base_16x4",
)


class Headless(nn.Module):
    """A network of pytorchvideo without its classifier: (B, 3, T, S, S) -> (B, ``dim``) float32.

    Feature maps are averaged over time and space; of tokens the first, the class token, is taken.

    Args:
        name: of :data:`NETWORKS`.
        frames: T, for which MViT is built, as for S.
        size: S.
    """

    def __init__(self, name: str, frames: int, size: int) -> None:
        super().__init__()
        make_pytorchvideo_importable()
        from pytorchvideo.models import hub

        if name.startswith("mvit"):
            self.network = getattr(hub, name)(spatial_size=size, temporal_size=frames, head=None)
        else:
            self.network = getattr(hub, name)()
            del self.network.blocks[-1]
        try:
            with torch.no_grad():
                output = self.eval()(torch.zeros(1, 3, frames, size, size))
        except RuntimeError as error:
            reason = " ".join(str(error).split())
            raise ValueError(
                f"{name} cannot take clips of {frames} frames and {size} pixels: {reason}"
            ) from error
        self.dim = output.shape[1]
        self.train()

    def forward(self, clips: Tensor) -> Tensor:
        """Features (B, H) of clips (B, 3, T, S, S)."""
        output: Tensor = self.network(clips)
        if output.ndim == 5:
            return output.mean(dim=(2, 3, 4), dtype=torch.float32)
        return output[:, 0].float()


def policy_of(name: str) -> Callable[[Tensor], Tensor]:
    """RandAugment or AugMix with the library's defaults: (T, 3, S, S) in [0, 1] -> the same."""
    make_pytorchvideo_importable()
    from pytorchvideo.transforms import AugMix, RandAugment

    policy: Callable[[Tensor], Tensor] = {"randaugment": RandAugment, "augmix": AugMix}[name]()
    return policy


def apply_policy(
    name: str, clips: Tensor, *, seed: int, epoch: int, samples: Tensor, view: int
) -> Tensor:
    """Clips (B, 3, T, S, S) float32 in [0, 1] under a policy of the library, on any device.

    The result for a clip is a function of (seed, epoch, sample, view): the library draws from
    torch's generator, which is seeded for each clip and restored afterwards. ``samples`` are the
    numbers (B,) int64 of the clips' videos.
    """
    policy = policy_of(name)
    changed = []
    with torch.random.fork_rng(devices=[]):
        for clip, sample in zip(clips, samples.tolist(), strict=True):
            entropy = np.random.SeedSequence([seed, epoch, sample, view]).generate_state(1)
            torch.default_generator.manual_seed(int(entropy[0]))  # only the CPU's
            changed.append(policy(clip.transpose(0, 1).contiguous()).transpose(0, 1))
    return torch.stack(changed).clamp_(0, 1)


def starts_of(sampler: Any, length: int, clip_frames: int, rate: float = 1.0) -> Tensor:
    """First frames (W,) int64 of a clip sampler's clips of a video; at least one.

    A configuration's ``windows`` may be a function that calls this. Starts beyond the last whole
    clip are replaced by its start; duplicates are dropped.

    Args:
        sampler: such as ``UniformClipSampler(clip_duration, stride)``, in seconds.
        length: frames of the video.
        clip_frames: T.
        rate: frames of a second; 1 for samplers whose seconds are frames.
    """
    starts, end, last = [], 0.0, False
    sampler.reset()
    while not last:
        clip = sampler(end, length / rate, {})
        is_list = isinstance(clip.clip_start_sec, list)
        begins = clip.clip_start_sec if is_list else [clip.clip_start_sec]
        starts += [round(float(begin) * rate) for begin in begins]
        end = clip.clip_end_sec[-1] if is_list else clip.clip_end_sec
        last = clip.is_last_clip[-1] if is_list else clip.is_last_clip
    sampler.reset()
    latest = max(length - clip_frames, 0)
    return torch.tensor(sorted({min(start, latest) for start in starts}))


def paths_of(dataset: Any) -> list[tuple[str, int]]:
    """Files and classes of a ``LabeledVideoDataset``, or of pairs (path, {"label": number}).

    A video without a label has -1.
    """
    pairs = getattr(dataset, "_labeled_videos", dataset)
    listed = []
    for number in range(len(pairs)):
        path, info = pairs[number]
        label = info.get("label", -1) if isinstance(info, Mapping) else info
        listed.append((str(path), int(label)))
    return listed
