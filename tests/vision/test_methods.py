"""Every method trains a step; who is compared with whom, and what is refused."""

import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from shared import Criterion, Objective, alignment, term
from shared.pairs import unit_rows
from vision.config import Config
from vision.methods import METHODS, check, networks_of
from vision.methods.base import Step
from vision.methods.moco import MoCoV2, MoCoV3
from vision.methods.simclr import SimCLR
from vision.methods.swav import swapped_prediction
from vision.train import make_optimiser, make_step

SWAV = {"method": "swav", "objective": Objective(term(swapped_prediction))}
# Every method, and what there is of it beside the plain one.
VARIANTS: dict[str, dict[str, Any]] = {
    **{method: {"method": method} for method in METHODS},
    "byol": {"method": "byol", "objective": Objective(term(alignment, curvature=2.5))},
    "swav": SWAV,
    "moco, first version": {"method": "moco_v2", "head_layers": 1},
    "swav, small crops": {**SWAV, "small_crops": 2, "prototypes": 5, "small_size": 8},
    "cmc": {"method": "cmc", "statistics": "none", "head_layers": 1},
    "mochi": {"method": "moco_v2", "mixed": (4, 3, 2)},
}
SMALL = dataclasses.replace(Config().reduced(), head_hidden=16, head_output=8, batch_size=6)


def small(**changes: Any) -> Config:
    return dataclasses.replace(SMALL, **{"predictor_hidden": 16, "queue": 8, **changes})


class Tiny(nn.Module):
    """In the place of a ResNet, for the tests that only look at who meets whom."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3 * 8 * 8, 512)

    def forward(self, images: Tensor) -> Tensor:
        return self.layer(images.flatten(1))


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    monkeypatch.setattr("vision.methods.base.encoder_of", lambda *_, **__: Tiny())


@pytest.mark.usefixtures("tiny")
@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS)
def test_a_step_trains_every_parameter(changes: dict[str, Any]) -> None:
    config = small(learning_rate=0.1, **changes)
    check(config)
    networks = networks_of(config, images=20)
    criterion = Criterion(config.objective, networks.dim)
    before = {name: item.clone() for name, item in networks.named_parameters()}
    views = tuple(torch.randn(6, 3, 8, 8) for _ in range(2 + config.small_crops))
    if config.method == "cmc":
        views = (torch.rand(6, 3, 8, 8),)
    optimiser = make_optimiser(config, nn.ModuleList([networks, criterion]))
    train_step = make_step(config, networks, criterion, optimiser)
    parts = train_step(views, Step(samples=torch.arange(6)))
    assert torch.isfinite(torch.stack(list(parts.values()))).all()
    moved = {
        name for name, item in networks.named_parameters() if not torch.equal(item, before[name])
    }
    # A bias before a batch norm has no gradient; none of ours stands there.
    assert moved == {name for name, item in networks.named_parameters() if item.requires_grad}


@pytest.mark.usefixtures("tiny")
def test_views_are_compared_as_the_pairs_setting_says() -> None:
    first, second = torch.randn(6, 3, 8, 8), torch.randn(6, 3, 8, 8)

    networks = SimCLR(small()).eval()
    x, z = (networks.head(networks.encoder(view)) for view in (first, second))
    (both,), features = networks.compare((first, second), Step())
    assert torch.equal(both.anchor, torch.cat([x, z]))
    assert torch.equal(both.candidate, both.anchor)
    assert [len(feature) for feature in features] == [6, 6]
    networks.config = small(pairs="both_views")
    (paper,), _ = networks.compare((first, second), Step())
    assert torch.equal(paper.anchor, z)
    assert torch.equal(paper.candidate, torch.cat([x, z]))
    assert paper.negative.sum(1).tolist() == [10] * 6
    networks.config = small(pairs="first_view")
    (authors,), _ = networks.compare((first, second), Step())
    assert torch.equal(authors.anchor, z)
    assert torch.equal(authors.candidate, x)
    assert authors.negative.sum(1).tolist() == [5] * 6

    config = small(method="moco_v3", symmetric=True)
    networks = MoCoV3(config).eval()
    with torch.no_grad():
        networks.teacher.encoder.layer.weight += 1.0  # so that it is not the student
    one, other = networks.compare((first, second), Step())[0]
    student = networks.predictor(networks.head(networks.encoder(first)))
    torch.testing.assert_close(one.anchor, student)
    torch.testing.assert_close(one.candidate, networks.teacher(second))
    torch.testing.assert_close(other.candidate, networks.teacher(first))
    assert not one.candidate.requires_grad
    networks.config = small(method="moco_v3")
    (alone,), features = networks.compare((first, second), Step())
    assert torch.equal(alone.anchor, one.anchor)
    assert len(features) == 1


@pytest.mark.usefixtures("tiny")
def test_a_queue_longer_than_the_data_is_shortened_with_a_notice() -> None:
    config = small(method="moco_v2", queue=10)
    with pytest.warns(RuntimeWarning, match="queue"):
        networks = MoCoV2(config, images=9)
    assert len(networks.queue) == 4
    assert len(MoCoV2(config, images=10).queue) == 10


@pytest.mark.usefixtures("tiny")
def test_mixed_negatives_join_the_queue_from_their_epoch_on() -> None:
    config = small(method="moco_v2", queue=10, mixed=(4, 3, 2), mixed_from=2.0)
    networks = MoCoV2(config).eval()
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


def test_the_first_moco_has_a_linear_head() -> None:
    networks = networks_of(small(method="moco_v2", head_layers=1))
    assert [type(layer) for layer in networks.head] == [nn.Linear]
    assert networks.head[0].weight.shape == (8, 512)


CMC = {"method": "cmc", "statistics": "none"}


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
        ({"augmentations": (small, small)}, "small"),
        ({"augmentations": ("simclr",)}, "pair"),
        ({"augmentations": "simclr"}, "pair"),
        ({**SWAV, "small_crops": 1, "small_augmentation": "no"}, "no"),
        ({"head_layers": 3}, "head_layers"),
        ({"mixed": (16, 8, 4)}, "mixed"),
        ({"method": "moco_v2", "mixed": (4097, 8, 4)}, "4097"),
        ({"method": "moco_v2", "mixed": (16, -8, 4)}, "-8"),
        ({"mixed_from": 10.0}, "mixed_from"),
        ({"symmetric": True}, "symmetric"),
        ({"gamma_schedule": ((1, 10.0),)}, "kernel"),
        ({"batch_size": 1}, "batch_size 1"),
        ({"epochs": -1}, "epochs"),
    ],
)
def test_what_has_no_meaning_is_refused(changes: dict[str, Any], word: str) -> None:
    with pytest.raises(ValueError, match=word):
        check(dataclasses.replace(Config(), **changes))
