"""The configuration of a vision run; each default cites its source.

[margins]: Rho et al. 2023; [ReSSL]: the small-data code of Zheng et al. 2021 that it builds on;
[HCL]: the image program of Robinson et al. 2021, a continuation of DCL's, followed for LMCL's,
CLLR's and MMCL's numbers on CIFAR and STL-10; [CMC]: Tian et al. 2020, the program of LMCL's and
CLLR's ImageNet-100 tables; [SwAV]: Caron et al. 2020 and its program; [LMCL]: Chen et al. 2021;
[MMCL]: Shah et al. 2022 and its configurations for ImageNet.
"""

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from shared import Objective, term
from shared.experiment.config import added, option
from shared.experiment.initial import InitialWeights
from shared.lazy import info_nce, max_margin
from shared.ranges import COUNT, NOT_NEGATIVE, POSITIVE, SHARE, STEP, Pairing, Range, Use, optional

Backbone = str | Callable[[], Any]  # see vision.encoder.make_encoder
Stem = Literal["cifar", "strided", "small", "imagenet", "small_padding_2"]
Method = Literal["simclr", "moco_v2", "moco_v3", "byol", "swav", "cmc"]

NT_XENT = Objective(term(info_nce, temperature=0.25))  # [margins] tau
NT_XENT_AT_HALF = Objective(term(info_nce, temperature=0.5))  # [HCL]


def _of_methods(*fields: str, methods: str) -> Use:
    """Fields that only some methods have."""
    words = methods.replace(",", "").split()
    return Use(fields, lambda config: config.method in words, f"method {methods}")


@dataclass(frozen=True)
class Config:
    """One pretraining run and its evaluation. The defaults are [margins] on CIFAR-10."""

    # Data: the images, and how they are prepared.
    dataset: str = "CIFAR10"
    evaluate_on: str | None = None  # another dataset for the probes (transfer); None: the same
    images: int | None = None  # of the training split, class-balanced; None: all of them
    # Pixels of the shorter side at which the images of ``dataset`` were decoded once, see
    # vision.prepared; crops are taken from these. None: from the files, as the papers do.
    prepared_side: int | None = option(None)
    image_size: int = 32  # side of the training crops in pixels; [ReSSL]: 32 CIFAR, 64 others
    test_size: int | None = None  # side of the test images; None: image_size
    # Whose mean and deviation normalise the input: None takes the dataset's own ([ReSSL]),
    # "CIFAR10" is [HCL] on every dataset, "none" is [MMCL] on ImageNet.
    statistics: str | None = None

    # Networks: the encoder and its heads.
    backbone: Backbone = "resnet18"  # [margins]
    # The first layers: "cifar" 3x3 without pooling; "small" 3x3 with it ([ReSSL] at 64 pixels);
    # "imagenet" the network's own, which all but the ResNets of vision.encoder need;
    # "small_padding_2" is "cifar" with padding 2, for checkpoints of solo-learn.
    stem: Stem = "cifar"
    # Attention heads of a transformer of timm; None: timm's number.
    heads: int | None = option(None)
    # What is evaluated: the encoder, or features without training, see vision.trivial.
    features: Literal["encoder", "pixels", "thumbnail", "histogram"] = added(
        "encoder", was="encoder"
    )
    # A published encoder instead of one trained here, see vision.checkpoints.
    weights: str | None = added(None, was=None)
    # What training starts from instead of random weights; the SHA-256 alone is recorded.
    init: InitialWeights | None = option(None)  # noqa: RUF009 (a field)
    # Whether the encoder's batch norms take the statistics of the training images before it is
    # evaluated; for one that was not trained.
    calibrated: bool = added(False, was=False)
    head_hidden: int = 2048  # [margins]
    head_output: int = 128  # [margins]
    head_layers: Literal[1, 2] = added(2, was=2)  # 1: linear, as in [CMC] and the first MoCo
    head_output_norm: bool = False  # batch norm after the last layer ([MMCL] on ImageNet: True)
    head_output_scale: bool = added(True, was=True)  # of that norm; MoCo v3's program: False
    predictor_hidden: int = 2048  # of MoCo v3 and BYOL; not stated, the heads' width

    # Method: what is compared with what, and by which objective.
    method: Method = "simclr"
    # Who is compared with whom in SimCLR: "both" views are anchors (NT-Xent); "both_views" has the
    # second view as anchor against both (MMCL's Algorithm 1); "first_view" the second against the
    # first (the program of MMCL's authors).
    pairs: Pairing = "both"
    objective: Objective = NT_XENT
    projection_dimensions: int = 256  # kept of CLLR's L for the evaluated feature; Chen et al. 2022
    # The kernel width of max_margin over time: from each epoch on, gamma times the factor.
    gamma_schedule: tuple[tuple[int, float], ...] = ()
    # MoCo v3, BYOL: both directions, or strong to weak alone; not stated in [margins].
    symmetric: bool = False
    # Times the mean over the directions; MoCo v3's program: 4 tau, the sum of both times 2 tau.
    loss_factor: float = added(1.0, was=1.0)
    teacher_momentum: float = 0.99  # [ReSSL]: 0.99 CIFAR, 0.996 STL-10 and TinyImageNet
    teacher_schedule: Literal["constant", "cosine"] = "constant"  # [ReSSL]
    # Negatives of MoCo v2 ([ReSSL]) and of CMC; of SwAV, what is kept of each large crop.
    queue: int = 4096
    # MoCHI's N, s and s': of the N hardest negatives of a query in the queue, s mixtures of two and
    # s' of one with the query are further negatives of it, from an epoch on, counted from 0.
    mixed: tuple[int, int, int] | None = added(None, was=None)
    mixed_from: float = added(0.0, was=0.0)
    memory_momentum: float = added(0.5, was=0.5)  # share of itself that CMC's memory keeps; [CMC]
    # [SwAV]: prototypes, how many epochs they stay as they start, the epoch
    # from which its queue fills (it is used once full), and small crops beside the two large ones.
    prototypes: int = added(3000, was=3000)
    prototypes_still: float = added(0.0, was=0.0)
    queue_from: float = added(0.0, was=0.0)
    small_crops: int = added(0, was=0)
    small_size: int = added(96, was=96)  # side of a small crop in pixels
    small_augmentation: str = added("swav_small", was="swav_small")

    # Training: views, batches and the optimiser.
    # Policies of vision.augmentation for the first (student's) and second (teacher's) view.
    augmentations: tuple[str, str] = ("ressl_strong", "ressl_weak")  # [margins]
    batch_size: int = 256  # [margins]
    # Largest number of images that the encoder takes at once; the gradient is that of the
    # whole batch (batch norms see chunks). None: all. See shared.chunks.
    chunk: int | None = option(None)
    epochs: int = 200  # [margins]; evaluated after the last, never the best
    optimiser: Literal["sgd", "adam", "lars"] = "sgd"  # [margins]
    learning_rate: float = 0.06  # [margins]
    sgd_momentum: float = 0.9  # [margins]; LARS takes it, too
    weight_decay: float = 5e-4  # [ReSSL]; not printed in [margins]
    warmup_epochs: float = 5.0  # [ReSSL]
    schedule: Literal["constant", "cosine", "steps"] = "cosine"  # [ReSSL], per step
    # With schedule "steps": the epochs from which on the rate is a tenth ([CMC]).
    milestones: tuple[int, ...] = ()
    precision: Literal["bfloat16", "float32"] = "bfloat16"  # autocast of the networks; additional
    compile: bool = False  # torch.compile the encoder; additional

    # Evaluation: protocols, and what of them is set.
    protocol: str = "linear-sgd-v1"  # see vision.evaluation.PROTOCOLS
    # A second protocol whose probe is also run: the paper's, next to the one of a reduced table.
    beside: str | None = added(None, was=None)
    probe_epochs: int | None = None  # None: the protocol's
    # False computes the probe's features once, without augmentation, to save time in reduced runs.
    probe_augmentation: bool = True
    # Steps of a protocol that trains the whole network; None: the protocol's.
    tuning_steps: int | None = added(None, was=None)
    # "train" lets the frozen backbone's batch norms normalise by the batch and drift, as the
    # [HCL] program does.
    probe_batch_norm: Literal["eval", "train"] = "eval"
    seed: int = 0  # initialisation, augmentations, order of batches

    ranges: ClassVar[Mapping[Range, tuple[str, ...]]] = {
        COUNT: (
            *("image_size", "head_hidden", "head_output", "predictor_hidden", "prototypes"),
            *("small_size", "projection_dimensions"),
        ),
        optional(COUNT): ("images", "prepared_side", "test_size"),
        STEP: ("queue", "small_crops", "epochs"),
        optional(STEP): ("probe_epochs", "tuning_steps"),
        SHARE: ("teacher_momentum", "memory_momentum", "sgd_momentum"),
        NOT_NEGATIVE: (
            *("learning_rate", "weight_decay", "warmup_epochs"),
            *("mixed_from", "prototypes_still", "queue_from"),
        ),
        POSITIVE: ("loss_factor",),
    }
    uses: ClassVar[tuple[Use, ...]] = (
        _of_methods("queue", methods="moco_v2, swav or cmc"),
        _of_methods("teacher_momentum", "teacher_schedule", methods="moco_v2, moco_v3 or byol"),
        _of_methods("predictor_hidden", methods="moco_v3 or byol"),
        _of_methods("memory_momentum", methods="cmc"),
        _of_methods("prototypes", "prototypes_still", "queue_from", "small_crops", methods="swav"),
        Use(
            ("small_size", "small_augmentation"),
            lambda config: config.method == "swav" and config.small_crops,
            "method swav and small_crops",
        ),
        Use(("head_hidden",), lambda config: config.head_layers == 2, "head_layers 2"),
        Use(("head_output_scale",), lambda config: config.head_output_norm, "head_output_norm"),
        Use(
            ("projection_dimensions",),
            lambda config: config.objective.projection,
            "an objective with a projection",
        ),
        Use(("milestones",), lambda config: config.schedule == "steps", "schedule steps"),
        Use(("sgd_momentum",), lambda config: config.optimiser != "adam", "optimiser sgd or lars"),
    )

    def reduced(self) -> "Config":
        """The same run on 8-pixel digits, for the smoke tier."""
        return dataclasses.replace(
            self,
            dataset="digits",
            evaluate_on=None if self.evaluate_on is None else "digits",
            images=96,
            prepared_side=None,
            image_size=8,
            test_size=None,
            statistics="none" if self.method == "cmc" else None,
            backbone=self.backbone if self.backbone == "resnet8" else "resnet18",
            stem="small",
            head_hidden=min(self.head_hidden, 128),
            head_output=min(self.head_output, 128),
            predictor_hidden=min(self.predictor_hidden, 128),
            queue=96,
            mixed=None if self.mixed is None else (16, 8, 4),
            mixed_from=0.0,
            prototypes=min(self.prototypes, 30),
            prototypes_still=0.0,
            queue_from=0.0,
            small_size=8,
            batch_size=48,
            epochs=min(self.epochs, 1),
            warmup_epochs=0.0,
            precision="float32",
            compile=False,
            probe_epochs=2,
            tuning_steps=1,
            probe_augmentation=False,
        )

    def objective_at(self, epoch: int) -> Objective:
        """The objective in an epoch, counted from 0: the kernel width follows its schedule."""
        factor = 1.0
        for start, times in self.gamma_schedule:
            if epoch >= start:
                factor *= times
        if factor == 1.0:
            return self.objective
        loss = self.objective.loss
        numbers = {**loss.kwargs, "gamma": loss.kwargs.get("gamma", 0.5) * factor}
        return dataclasses.replace(self.objective, loss=dataclasses.replace(loss, kwargs=numbers))


# Where [HCL] differs. Its probe, see vision.evaluation, is "linear-adam-v1".
HCL: dict[str, Any] = {
    "statistics": "CIFAR10",
    "backbone": "resnet50",
    "head_hidden": 512,
    "objective": NT_XENT_AT_HALF,
    "augmentations": ("hcl", "hcl"),
    "epochs": 400,
    "optimiser": "adam",
    "learning_rate": 1e-3,
    "weight_decay": 1e-6,
    "warmup_epochs": 0.0,
    "schedule": "constant",
    "protocol": "linear-adam-v1",
}

# Where [MMCL] on ImageNet differs.
MMCL_IMAGENET: dict[str, Any] = {
    "image_size": 224,
    "statistics": "none",
    "backbone": "resnet50",
    "stem": "imagenet",
    "head_output_norm": True,
    "pairs": "both_views",
    "objective": Objective(term(max_margin, gamma=0.1, cost=100.0, ridge=0.1)),
    "augmentations": ("mmcl_imagenet", "mmcl_imagenet"),
    "epochs": 100,
    "optimiser": "lars",
    "learning_rate": 1.2,
    "weight_decay": 1e-6,
    "warmup_epochs": 10.0,
    "protocol": "linear-mmcl-imagenet-v1",
}

# Where [CMC] differs (train_moco_ins.py), its 240 epochs scaled to the papers' 100.
CMC: dict[str, Any] = {
    "dataset": "ImageNet100",
    "image_size": 224,
    "backbone": "resnet50",
    "stem": "imagenet",
    "head_layers": 1,
    "method": "moco_v2",
    "objective": Objective(term(info_nce, temperature=0.07)),
    "teacher_momentum": 0.999,
    "augmentations": ("cmc", "cmc"),
    "batch_size": 128,
    "epochs": 100,
    "learning_rate": 0.03,
    "weight_decay": 1e-4,
    "warmup_epochs": 0.0,
    "schedule": "steps",
    "milestones": (50, 67, 83),
    "protocol": "linear-cmc-v1",
}


# The fields that say how the encoder is evaluated, and on what.
EVALUATION = (
    "evaluate_on",
    "test_size",
    "projection_dimensions",
    "protocol",
    "beside",
    "probe_epochs",
    "probe_augmentation",
    "tuning_steps",
    "probe_batch_norm",
)
# All others say what is trained, and on what: runs that agree in them share one encoder, see
# shared.experiment.store.
PRETRAINING = tuple(
    field.name for field in dataclasses.fields(Config) if field.name not in EVALUATION
)


@dataclass(frozen=True)
class ToyConfig:
    """One trial of vision.toy; the paper, [LMCL], prints Adam and its rate; the rest is additional.

    A linear map P of points in the plane is learned contrastively; ``normalised`` compares by
    cosine, otherwise by inner product.
    """

    data: Literal["three_bars", "nested_moons"] = "three_bars"
    # None: "Euclidean space", the raw points; temperature as in [HCL]
    objective: Objective | None = NT_XENT_AT_HALF
    normalised: bool = False
    noise: float = 0.1  # standard deviation of what is added to a point for a view of it
    # P starts at this multiple of the identity. The paper's 0 cannot train: the loss depends on P
    # only through P'P, whose gradient at 0 is 0, and the cosine with a zero vector is always 0.
    init: float = 0.1
    batch_size: int = 128
    steps: int = 1000
    learning_rate: float = 1e-3  # [LMCL]; Adam
    protocol: str = "kmeans-hungarian-v1"
    seed: int = 0  # points, batches, noise, starts of K-means

    def reduced(self) -> "ToyConfig":
        """The same trial with few steps, for the smoke tier."""
        return dataclasses.replace(self, steps=20)
