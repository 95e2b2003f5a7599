"""The configuration of a video run; each default cites its source.

[CoCLR]: Han et al. 2020 and its program, whose InfoNCE figures MMCL quotes as its baseline and
whose setting is taken for everything MMCL leaves out; [MMCL]: Shah et al. 2022.
"""

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from shared import Objective, term
from shared.experiment.config import added, option
from shared.experiment.initial import InitialWeights
from shared.lazy import info_nce
from shared.ranges import (
    COUNT,
    NOT_NEGATIVE,
    POSITIVE,
    SHARE,
    STEP,
    Pairing,
    Range,
    Use,
    optional,
)

INFO_NCE = Objective(term(info_nce, temperature=0.07))  # [CoCLR]
FOLDER, LISTS = "UCF-101", "ucfTrainTestlist"
SPLITS = (1, 2, 3)
OWN = "folder:"  # before the path of the user's own folder
EMBEDDED = "photographs"  # short clips made from pictures that ship with scikit-learn
BASELINES = ("thumbnail", "colours")  # trivial baselines: features without training
STRIDES = (2, 1, 2, 2, 2)


@dataclass(frozen=True)
class Config:
    """One pretraining run on clips and its evaluation. The defaults are [CoCLR]'s InfoNCE."""

    dataset: str = "ucf101"  # or "hmdb51", or EMBEDDED
    split: int = 1  # of the three official ones; [MMCL]
    modality: Literal["rgb", "flow"] = "rgb"
    clip_frames: int = 32  # consecutive frames of a clip; [CoCLR]
    size: int = 128  # pixels of a clip's side; [CoCLR]
    # Which two clips are a pair: [CoCLR] takes two clips of a video or one clip twice, with equal
    # probability; "two_clips" always takes two.
    sampling: Literal["coclr", "two_clips"] = "coclr"
    # Of clips in RGB: [CoCLR]'s mixture of weak and strong, always "strong", or crop, flip and
    # pytorchvideo's "randaugment" or "augmix"; flow has its own.
    policy: Literal["coclr", "strong", "randaugment", "augmix"] = added("coclr", was="coclr")
    # Of clips in flow: TV-L1 as [CoCLR], or the fast approximation DIS; see video.flow.
    flow: Literal["tvl1", "dis"] = added("tvl1", was="tvl1")

    # "s3d", "r2plus1d", one of BASELINES, a network of pytorchvideo (video.pytorchvideo.NETWORKS),
    # or a function that makes one, (B, 3, T, S, S) -> (B, H).
    network: str | Callable[[], Any] = added("s3d", was="s3d")  # noqa: RUF009 (a field)
    # What training starts from instead of random weights; the SHA-256 alone is recorded.
    init: InitialWeights | None = option(None)  # noqa: RUF009 (a field)
    width: float = 1.0  # of the network, times its channels
    # Of R(2+1)D, the stem's in space only and the stages' in space and time; S3D's are fixed.
    strides: tuple[int, ...] = added(STRIDES, was=STRIDES)
    batch_norm_momentum: float = 0.1  # [CoCLR]; the original S3D: 0.001
    batch_norm_epsilon: float = 1e-5  # [CoCLR]; the original S3D: 0.001
    head_hidden: int = 1024  # [CoCLR]
    head_batch_norm: bool = added(False, was=False)  # after the head's first layer
    head_output: int = 128  # [CoCLR]

    method: Literal["simclr", "moco"] = "moco"  # [CoCLR]
    # Who is compared with whom in SimCLR: "both" clips are anchors (NT-Xent); "both_views" has the
    # second clip as anchor against both (MMCL's Algorithm 1); "first_view" the second against the
    # first (the program of MMCL's authors).
    pairs: Pairing = "both"
    objective: Objective = INFO_NCE
    # Negatives of MoCo; [CoCLR]; of fewer training videos see shared.momentum.bank_size.
    queue: int = 2048
    teacher_momentum: float = 0.999  # [CoCLR]
    projection_dimensions: int = 256  # kept of CLLR's L for the evaluated feature; Chen et al. 2022

    batch_size: int = 128  # [MMCL], from its 254 negatives; [CoCLR]: 64
    # Largest number of videos that the encoder takes at once; the gradient is that of the
    # whole batch (batch norms see chunks). None: all. See shared.chunks.
    chunk: int | None = option(None)
    epochs: int = 300  # [MMCL]; evaluated after the last
    schedule: Literal["milestones", "cosine"] = added("milestones", was="milestones")
    milestones: tuple[int, ...] = (250, 280)  # the rate falls to a tenth after each; [CoCLR]
    optimiser: Literal["adam", "adamw"] = added("adam", was="adam")  # [CoCLR]
    learning_rate: float = 1e-3  # [CoCLR]
    weight_decay: float = 1e-5  # [CoCLR]
    precision: Literal["bfloat16", "float32"] = "bfloat16"  # of the network under autocast

    train: bool = True  # False: the encoder stays as initialised
    # For an untrained encoder: whether its batch norms get the statistics of one epoch.
    calibrate: bool = added(False, was=False)
    protocol: str = "coclr-linear-retrieval-v2"  # see video.evaluation.PROTOCOLS
    probe_epochs: int = 100  # [MMCL]; of the linear probe, the last one counts
    probe_batch_size: int = 64  # [CoCLR]
    probe_learning_rate: float = 0.1  # SGD, a tenth after 60% and 80% of the epochs; [CoCLR]
    probe_weight_decay: float = 1e-3  # [CoCLR]
    probe_milestones: tuple[float, ...] = (0.6, 0.8)  # [CoCLR]
    # The probe's training features: random crops that are encoded again in every epoch ([CoCLR]),
    # or this number of random crops of each video, encoded once.
    probe_views: int | None = None
    # The largest number of evenly spaced windows of a video, or all of them ([CoCLR]); or your own
    # function, (frames of the video, frames of a clip) -> first frames.
    windows: int | Callable[[int, int], Any] | None = added(  # noqa: RUF009 (a field)
        None, was=None
    )
    seed: int = 0  # initialisation, batches, clips

    ranges: ClassVar[Mapping[Range, tuple[str, ...]]] = {
        COUNT: (
            *("clip_frames", "size", "head_hidden", "head_output", "projection_dimensions"),
            *("batch_size", "probe_batch_size"),
        ),
        optional(COUNT): ("probe_views",),
        STEP: ("queue", "epochs", "probe_epochs"),
        SHARE: ("teacher_momentum", "batch_norm_momentum"),
        NOT_NEGATIVE: ("learning_rate", "weight_decay", "probe_weight_decay"),
        POSITIVE: ("width", "batch_norm_epsilon", "probe_learning_rate"),
    }
    uses: ClassVar[tuple[Use, ...]] = (
        Use(("queue", "teacher_momentum"), lambda config: config.method == "moco", "method moco"),
        Use(("policy",), lambda config: config.modality == "rgb", "modality rgb"),
        Use(("flow",), lambda config: config.modality == "flow", "modality flow"),
        Use(
            ("projection_dimensions",),
            lambda config: config.objective.projection,
            "an objective with a projection",
        ),
        Use(
            ("milestones",),
            lambda config: config.schedule == "milestones",
            "schedule milestones",
        ),
        Use(
            ("epochs", "learning_rate", "weight_decay", "schedule", "optimiser", "chunk"),
            lambda config: config.train,
            "train=true",
        ),
    )

    def reduced(self) -> "Config":
        """The same run of a small network on few small clips, for the smoke tier."""
        return dataclasses.replace(
            self,
            dataset=EMBEDDED,
            clip_frames=8,
            size=32,
            width=0.125,
            batch_norm_momentum=0.5,  # so that the statistics converge in few steps
            head_hidden=32,
            head_output=16,
            queue=min(self.queue, 16),
            projection_dimensions=min(self.projection_dimensions, 32),
            batch_size=8,
            epochs=4,
            milestones=(),
            probe_epochs=4,
            probe_views=2,
        )
