"""The configuration of a graph run; each default cites its source.

[MMCL]: Shah et al. 2022; [GraphCL]: You et al. 2020; [program]: GraphCL's unsupervised_TU.
"""

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from shared import Objective, term
from shared.experiment.config import added, option
from shared.experiment.initial import InitialWeights
from shared.lazy import info_nce
from shared.ranges import COUNT, NOT_NEGATIVE, SHARE, STEP, Pairing, Range, Use

# You et al. 2020, Eq. 3 and [program]: cosine / 0.2, the positive left out of the denominator.
GRAPHCL = Objective(term(info_nce, temperature=0.2, positive_in_denominator=False))


@dataclass(frozen=True)
class Config:
    """One pretraining run and its evaluation."""

    dataset: str = "MUTAG"
    objective: Objective = GRAPHCL
    train: bool = True  # False: the encoder stays as initialised
    # True: before evaluation, batch norms get the statistics of all graphs, which an untrained
    # encoder lacks.
    calibrate: bool = added(False, was=False)
    # What is scored. Trivial baselines need no encoder: see graph.evaluation.sizes.
    features: Literal["encoder", "sizes", "constant"] = added("encoder", was="encoder")
    # Who is compared with whom, see shared.pairs.paired_views; the first views are the original
    # graphs, the second the augmented ones. [program]: anchors are the originals.
    pairs: Pairing = "second_view"

    # The augmentation of a graph is drawn from these at every access ([program]: random2). Or your
    # own function, (graphs, generator) -> graphs, instead of all of them.
    augmentations: tuple[str, ...] | Callable[..., Any] = (
        "node_drop",
        "subgraph",
    )  # author, GraphCL issue 57
    drop_ratio: float = 0.2  # [GraphCL] default ratio; [program] 0.1
    subgraph_ratio: float = 0.2  # [program]: share of nodes kept
    # True follows the program where it differs from the paper's text: one-hop stars as subgraphs,
    # edges only removed, each direction separately, isolated nodes dropped after augmentation,
    # noise as mask, self-loops on all but the last node of original graphs.
    authors_augmentation: bool = False
    reshuffle: bool = True  # [program]: False, the same batches every epoch

    # "gin", GraphCL's; a network of torch_geometric.nn such as "GCN"; or a function from the width
    # of the node features to a network: see graph.encoder.make_encoder.
    network: str | Callable[[int], Any] = added("gin", was="gin")  # noqa: RUF009 (a field)
    # What training starts from instead of random weights; the SHA-256 alone is recorded.
    init: InitialWeights | None = option(None)  # noqa: RUF009 (a field)
    readout: Literal["sum", "mean", "max"] = added("sum", was="sum")  # of nodes; "gin" sums
    layers: int = 3  # [program], go.sh
    hidden: int = 32  # [program]
    batch_size: int = 128  # [program]
    # Largest number of graphs that the encoder takes at once; the gradient is that of the
    # whole batch (batch norms see chunks). None: all. See shared.chunks.
    chunk: int | None = option(None)
    learning_rate: float = 0.01  # [program], go.sh; Adam as in [MMCL]
    epochs: int = 20  # [program]; evaluated after the last, never the best
    # [program] uses float32, in which the accuracy depends on a processor's order of summation as
    # much as on the seed.
    precision: Literal["float64", "float32"] = added("float64", was="float32")

    protocol: str = "svm-10fold-nested-v1"
    seed: int = 0  # initialisation, augmentation, order of batches
    fold_seed: int = 0  # folds of the evaluation, the same for every pretraining seed

    ranges: ClassVar[Mapping[Range, tuple[str, ...]]] = {
        COUNT: ("layers", "hidden", "batch_size"),
        STEP: ("epochs", "fold_seed"),
        SHARE: ("drop_ratio", "subgraph_ratio"),
        NOT_NEGATIVE: ("learning_rate",),
    }
    uses: ClassVar[tuple[Use, ...]] = (
        Use(("readout",), lambda config: config.network != "gin", "another network than gin"),
        Use(("calibrate",), lambda config: not config.train, "train=false"),
        Use(("epochs", "learning_rate", "chunk"), lambda config: config.train, "train=true"),
        Use(
            ("subgraph_ratio",),
            lambda config: callable(config.augmentations) or "subgraph" in config.augmentations,
            "the augmentation subgraph",
        ),
    )

    def reduced(self) -> "Config":
        """The same run on small embedded graphs, for the smoke tier."""
        return dataclasses.replace(self, dataset="atlas", epochs=2, batch_size=64)
