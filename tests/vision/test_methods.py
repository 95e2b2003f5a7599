"""MoCo's queue and its mixtures, and what is refused; steps of every method: test_plain."""

import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from shared import Objective, alignment, max_margin, term
from shared.pairs import unit_rows
from vision.config import Config
from vision.methods import check
from vision.methods.base import Step
from vision.methods.moco import MoCoV2
from vision.methods.swav import swapped_prediction

SWAV = {"method": "swav", "objective": Objective(term(swapped_prediction))}
CMC = {"method": "cmc", "statistics": "none"}
VIT = {"backbone": "vit_tiny_patch16_224", "stem": "imagenet", "image_size": 32}
SMALL = dataclasses.replace(
    Config().reduced(), method="moco_v2", head_hidden=16, head_output=8, batch_size=6, queue=10
)


class Tiny(nn.Module):
    """In the place of a ResNet."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3 * 8 * 8, 512)

    def forward(self, images: Tensor) -> Tensor:
        return self.layer(images.flatten(1))


@pytest.fixture(autouse=True)
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    monkeypatch.setattr("vision.methods.base.encoder_of", lambda *_, **__: Tiny())


def test_a_queue_longer_than_the_data_is_shortened_with_a_notice() -> None:
    with pytest.warns(RuntimeWarning, match="queue"):
        networks = MoCoV2(SMALL, images=9)
    assert len(networks.queue) == 4
    assert len(MoCoV2(SMALL, images=10).queue) == 10


def test_mixed_negatives_join_the_queue_from_their_epoch_on() -> None:
    networks = MoCoV2(dataclasses.replace(SMALL, mixed=(4, 3, 2), mixed_from=2.0), 20).eval()
    view = torch.randn(6, 3, 8, 8)
    (before,), _ = networks.compare((view, view), Step(epoch=1.5))
    assert before.candidate.shape == (16, 8)
    (pairs,), _ = networks.compare((view, view), Step(epoch=2.0))
    assert pairs.candidate.shape == (16 + 6 * 5, 8)
    assert pairs.negative.sum(1).tolist() == [10 + 5] * 6
    for anchor, row in enumerate(pairs.negative[:, 16:].view(6, 6, 5)):
        assert row.all(1).tolist() == [other == anchor for other in range(6)]
    assert torch.equal(pairs.candidate[:16], before.candidate)
    old = networks.queue.clone()
    networks.remember([pairs], Step())
    torch.testing.assert_close(networks.queue[:6], unit_rows(before.candidate[:6]))
    assert torch.equal(networks.queue[6:], old[:4])


@pytest.mark.parametrize(
    "changes",
    [
        {"method": "moco_v2", "queue": 9, "mixed": (9, 0, 0)},
        {"method": "moco_v2", "queue": 9, "mixed": (1, 0, 1)},
        {**SWAV, "prototypes": 2},
        {**CMC, "queue": 1, "memory_momentum": 0.0},
        {"batch_size": 2},
        {"objective": Objective(term(max_margin, gamma=0.02)), "gamma_schedule": ((1, 10.0),)},
        {**VIT, **SWAV, "small_crops": 1, "small_size": 32},
    ],
)
def test_the_ends_of_ranges_are_taken(changes: dict[str, Any]) -> None:
    check(dataclasses.replace(Config(), **changes))


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"method": "dino"}, "dino"),
        ({"method": "swav"}, "swapped_prediction"),
        ({"objective": Objective(term(swapped_prediction))}, "swapped_prediction"),
        ({"small_crops": 6}, "small_crops"),
        ({**SWAV, "prototypes": 1}, "prototypes 1"),
        ({**SWAV, "queue": -1}, "queue"),
        ({"method": "cmc"}, "statistics"),
        ({**CMC, "queue": 0}, "queue 0"),
        ({**CMC, "memory_momentum": 1.0}, "memory_momentum"),
        ({**CMC, "pairs": "first_view"}, "pairs"),
        ({**SWAV, "symmetric": True}, "symmetric"),
        ({"method": "byol"}, "alignment"),
        ({"objective": Objective(term(alignment))}, "collapse"),
        ({"pairs": "one"}, "pairs"),
        ({"method": "moco_v3", "pairs": "first_view"}, "simclr"),
        ({"augmentations": ("hcl", "weak")}, "weak"),
        ({"augmentations": (check, check)}, "check"),
        ({**SWAV, "small_crops": 1, "small_augmentation": "no"}, "no"),
        ({**VIT, **SWAV, "small_crops": 1, "small_size": 16}, "16, 32"),
        ({**VIT, **CMC}, "half the width"),
        ({"head_layers": 3}, "head_layers"),
        ({"mixed": (16, 8, 4)}, "mixed"),
        ({"method": "moco_v2", "mixed": (4097, 8, 4)}, "4097"),
        ({"method": "moco_v2", "mixed": (16, -8, 4)}, "-8"),
        ({"mixed_from": 10.0}, "mixed_from"),
        ({"symmetric": True}, "symmetric"),
        ({"gamma_schedule": ((1, 10.0),)}, "kernel"),
        ({"batch_size": 1}, "batch_size 1"),
        ({"chunk": 0}, "chunk"),
        ({"epochs": -1}, "epochs"),
        ({"features": "pixels"}, "epochs"),
        ({"calibrated": True}, "epochs"),
        ({"weights": "moco-v2-resnet50"}, "epochs"),
        ({"weights": "moco-v2-resnet50", "epochs": 0, "features": "pixels"}, "features"),
        ({"weights": "moco-v2-resnet50", "epochs": 0, "calibrated": True}, "calibrated"),
    ],
)
def test_what_has_no_meaning_is_refused(changes: dict[str, Any], word: str) -> None:
    with pytest.raises(ValueError, match=word):
        check(dataclasses.replace(Config(warmup_epochs=0.0), **changes))
