"""What a method has of its own, and what is refused; steps of every method: test_plain."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from shared import Objective, alignment, cosine, max_margin, term
from shared.experiment.initial import InitialWeights
from shared.pairs import unit_rows
from vision.config import Config
from vision.encoder import rgb_to_lab
from vision.methods import check
from vision.methods.base import Step
from vision.methods.moco import MoCoV2
from vision.methods.swav import codes, crop_pairs, swapped_prediction

PARITY = Path(__file__).parents[1] / "parity" / "vision"

SWAV = {"method": "swav", "objective": Objective(term(swapped_prediction))}
CMC = {"method": "cmc", "statistics": "none"}
INIT = InitialWeights(Path("model.pth"), "5f" * 32)
VIT = {"backbone": "vit_tiny_patch16_224", "stem": "imagenet", "image_size": 32}
SMALL = dataclasses.replace(
    Config().reduced(), method="moco_v2", head_hidden=16, head_output=8, batch_size=6, queue=10
)


@pytest.fixture(autouse=True)
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the place of a ResNet."""
    torch.manual_seed(0)
    made = nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, 512))
    monkeypatch.setattr("vision.methods.base.encoder_of", lambda *_, **__: made)


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


# CMC: Lab


def test_lab_is_scikit_image_s() -> None:
    case = json.loads((PARITY / "lab.json").read_text())
    colours = torch.tensor(case["rgb"], dtype=torch.float64).T[None, :, :, None]
    expected = torch.tensor(case["lab"], dtype=torch.float64)
    torch.testing.assert_close(rgb_to_lab(colours)[0, :, :, 0].T, expected, rtol=0, atol=1e-4)


# SwAV: its loss against an independent program


def test_codes_are_finite_where_the_exponentials_are_not() -> None:
    scores = torch.linspace(-1, 1, 20).view(4, 5)
    assert torch.isfinite(codes(scores, epsilon=1e-4, iterations=3)).all()


@pytest.mark.parametrize(
    "case",
    json.loads((PARITY / "swav.json").read_text()),
    ids=lambda case: f"{len(case['settings']['small'])} small",
)
def test_value_and_gradients_are_those_of_an_independent_program(case: dict[str, Any]) -> None:
    settings = case["settings"]

    def double(rows: Any) -> Tensor:
        return torch.tensor(rows, dtype=torch.float64)

    first, second = (double(case[name]).requires_grad_() for name in ("first", "second"))
    older = double(settings["queue"]) if settings["queue"] else None
    crops = torch.stack([first, second, *map(double, settings["small"])])
    pairs = crop_pairs(crops, double(settings["prototypes"]), older)
    numbers = {name: settings[name] for name in ("temperature", "epsilon", "iterations")}
    value = swapped_prediction(pairs, cosine(pairs.anchor, pairs.candidate), **numbers).mean()
    assert float(value.detach()) == pytest.approx(case["value"], rel=1e-12)
    for got, name in zip(
        torch.autograd.grad(value, (first, second)), ("first", "second"), strict=True
    ):
        torch.testing.assert_close(got, double(case[f"grad_{name}"]), rtol=1e-10, atol=1e-10)


# What is refused


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
        ({"init": INIT, "features": "pixels"}, "init"),
        ({"init": INIT, "weights": "moco-v2-resnet50"}, "init"),
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
