"""The transfer suite: protocols against slow reference implementations, and what they refuse."""

import copy
import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import NearestCentroid
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from shared.errors import UserError
from shared.experiment.run import Run
from shared.experiment.run_folders import Interrupted
from tests.stages.training import spied
from tests.vision.test_evaluation import DIGITS, small_encoder
from vision import transfer as module
from vision.data import load, permutation
from vision.datasets import describe
from vision.evaluation import PROTOCOLS, evaluate
from vision.features import FewShot, FineTuning, as_test_images, starting_classifier
from vision.transfer import (
    TRIED,
    average_precision,
    episodes,
    few_shot,
    fine_tuned,
    held_out,
    many_shot,
    mean_average_precision,
    scores,
)

SMALL = FewShot(shots=3, ways=4, queries=5, episodes=7)


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def labels_of(count: int, classes: int, seed: int = 0) -> Tensor:
    return torch.randint(classes, (count,), generator=torch.Generator().manual_seed(seed))


# Few-shot


def test_prototypes_are_scikit_learn_s_centroids() -> None:
    features, labels = drawn(300, 6), labels_of(300, 9)
    features += 0.7 * labels[:, None].sin()
    found = few_shot(features, labels, SMALL)
    expected = []
    for episode in episodes(labels, SMALL):
        support, queries = episode[:, :3].flatten(), episode[:, 3:].flatten()
        centroids = NearestCentroid().fit(features[support], labels[support])
        expected.append(100 * centroids.score(features[queries], labels[queries]))
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64))
    assert 25 < float(found.mean()) < 100
    interval = 1.96 * np.std(expected) / len(expected) ** 0.5
    assert module.mean_and_interval(found) == pytest.approx((np.mean(expected), interval))


def test_an_episode_has_no_image_twice_and_no_rare_classes() -> None:
    labels = labels_of(300, 9)
    index = episodes(labels, SMALL)
    assert index.shape == (7, 4, 8)
    for episode in index:
        assert len(set(episode.flatten().tolist())) == 32
        classes = [set(labels[images].tolist()) for images in episode]
        assert all(len(each) == 1 for each in classes)
        assert len(set.union(*classes)) == 4
    assert len({tuple(each.flatten().tolist()) for each in index}) == 7
    assert torch.equal(index, episodes(labels, SMALL))  # whatever the run
    labels = torch.cat([labels_of(300, 9), torch.full((7,), 9)])
    chosen = labels[episodes(labels, dataclasses.replace(SMALL, episodes=50))]
    assert set(chosen.unique().tolist()) == set(range(9))
    with pytest.raises(UserError, match="3 classes"):
        episodes(torch.arange(3).repeat(8), SMALL)


# Metrics


def test_classes_that_do_not_occur_and_difficult_images_do_not_count() -> None:
    labels, predicted = torch.tensor([[0, 0, 0, 0, 2, 2], [0, 0, 0, 3, 1, 2]])
    found = scores(nn.functional.one_hot(predicted).float(), labels)
    assert found == pytest.approx({"top1": 400 / 6, "mean_per_class": 100 * (3 / 4 + 1 / 2) / 2})
    outputs = torch.tensor([[3.0, 1.0], [2.0, 2.0], [1.0, 3.0]])
    labels = torch.tensor([[-1, 0], [1, 0], [0, 1]])
    assert mean_average_precision(outputs, labels) == 100
    assert scores(outputs, labels.clamp(min=0)) == {"map11": pytest.approx(75)}


def test_average_precision_by_hand() -> None:
    # Ranks 1, 3 and 6 are positive: precision 1 at recall 1/3, 2/3 at 2/3, 1/2 at 1.
    outputs = torch.tensor([9.0, 8.0, 7.0, 6.0, 5.0, 4.0])
    positive = torch.tensor([True, False, True, False, False, True])
    expected = (4 * 1 + 3 * 2 / 3 + 4 * 1 / 2) / 11  # recalls to 0.3, to 0.6, to 1
    assert average_precision(outputs, positive) == pytest.approx(expected)
    # The best precision at a recall or more: 1/2 with the second and the third positive alone.
    late = torch.tensor([False, True, False, True, False, False])
    assert average_precision(outputs, late) == pytest.approx(1 / 2)
    # Equal outputs have no order.
    tied = torch.ones(6)
    assert average_precision(tied, positive) == average_precision(tied, positive.flip(0)) == 1 / 2
    with pytest.raises(ValueError, match="no image"):
        average_precision(outputs, torch.zeros(6, dtype=torch.bool))


# Many-shot


def standardised_by_hand(train: Tensor, test: Tensor) -> tuple[np.ndarray, np.ndarray]:
    mean, deviation = train.mean(0), train.std(0, unbiased=False)
    return ((train - mean) / deviation).numpy(), ((test - mean) / deviation).numpy()


@pytest.mark.parametrize(
    ("count", "centres", "costs"),
    [
        (160, 0.4 * torch.eye(3, 5), (10.0, 1e-4, 1e-2, 1.0)),
        # With so many features the weakest penalty fits what it has seen, noise and all.
        (240, 0.2 * torch.arange(2)[:, None].expand(2, 120), (1e3, 1e-2)),
    ],
)
def test_many_shot_is_scikit_learn_at_the_cost_that_validates_best(
    count: int, centres: Tensor, costs: tuple[float, ...]
) -> None:
    classes, width = centres.shape
    labels, test_labels = labels_of(count, classes), labels_of(90, classes, seed=1)
    train = drawn(count, width) + centres[labels]
    test = drawn(90, width, seed=1) + centres[test_labels]
    validating = torch.arange(count) % 4 == 0
    cost, outputs = many_shot(train, labels, test, validating, costs, metric="top1")

    x, y = standardised_by_hand(train, test)
    inside, scored = ~validating.numpy(), []
    for each in sorted(costs):
        model = LogisticRegression(C=each, tol=1e-8, max_iter=10_000)
        right = model.fit(x[inside], labels[inside]).score(x[~inside], labels[~inside])
        seen = model.fit(x, labels).score(x[~inside], labels[~inside])
        scored.append((right, seen, each))
    assert cost == max(scored, key=lambda entry: entry[0])[-1]  # the first of equals
    if width == 120:
        assert cost != max(scored, key=lambda entry: entry[1])[-1]
    model = LogisticRegression(C=cost, tol=1e-8, max_iter=10_000).fit(x, labels)
    assert scores(outputs, test_labels)["top1"] == pytest.approx(100 * model.score(y, test_labels))
    assert outputs.shape == (90, classes)


def test_several_classes_in_an_image_are_as_many_regressions() -> None:
    features, test = drawn(120, 4), drawn(50, 4, seed=1)
    labels = torch.stack([features[:, 0] > 0, features[:, 1] > 0.5], 1).long()
    labels[:5, 0] = -1  # which the first regression leaves out
    validating = torch.arange(120) % 3 == 0
    cost, outputs = many_shot(features, labels, test, validating, (1e-3, 1.0), metric="map11")
    assert outputs.shape == (50, 2)
    x, y = standardised_by_hand(features, test)
    model = LogisticRegression(C=cost, tol=1e-8, max_iter=10_000).fit(x[5:], labels[5:, 0])
    np.testing.assert_allclose(outputs[:, 0], model.decision_function(y), rtol=1e-2, atol=1e-2)


def test_published_validation_images_validate_else_a_fifth() -> None:
    dtd = describe("DTD")
    chosen = held_out(dtd, dtd.train)
    assert chosen.tolist() == [False] * 1880 + [True] * 1880
    food = held_out(describe("Food"), 100)
    assert int(food.sum()) == 20
    assert torch.equal(food, held_out(describe("Food"), 100))
    assert int(held_out(dtd, 100).sum()) == 20  # a part of the images has no published ones


# Fine-tuning


def test_fine_tuning_is_the_plain_loop() -> None:
    images = load("digits", Path(), "train").subset(torch.arange(50))
    protocol = FineTuning(7, rates=(0.05,), decays=(0.0,), batch_size=20)
    config = dataclasses.replace(DIGITS, images=None)
    encoder = small_encoder().eval()
    before = copy.deepcopy(encoder.state_dict())
    network = fine_tuned(config, protocol, encoder, images, 0.05, 1e-2, 7)

    digits = describe("digits")
    classifier = starting_classifier(32, 10, None, 3)
    reference = nn.Sequential(small_encoder(), classifier).train()
    optimiser = torch.optim.SGD(
        reference.parameters(), 0.05, momentum=0.9, nesterov=True, weight_decay=1e-2
    )
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, 7)
    order = np.concatenate([permutation(50, 3, epoch)[:40] for epoch in range(4)])
    for step in range(7):
        batch = torch.from_numpy(order[20 * step : 20 * step + 20])
        inputs = as_test_images(images.pixels[batch], 8, digits.mean, digits.std)
        optimiser.zero_grad()
        cross_entropy(reference(inputs), images.labels[batch]).backward()
        optimiser.step()
        schedule.step()
    for mine, expected in zip(
        network.state_dict().values(), reference.state_dict().values(), strict=True
    ):
        torch.testing.assert_close(mine, expected, rtol=1e-4, atol=1e-5)
    for name, value in encoder.state_dict().items():  # as it was
        assert torch.equal(value, before[name])
    assert not encoder.training


def test_fine_tuning_takes_what_validates_best_and_goes_on_where_it_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    protocol = FineTuning(3, rates=(0.1, 0.01), decays=(0.0, 1e-4), batch_size=20)
    monkeypatch.setitem(
        PROTOCOLS, "tried-v1", dataclasses.replace(PROTOCOLS["fine-tuned-v1"], transfer=protocol)
    )
    config = dataclasses.replace(DIGITS, protocol="tried-v1", images=60)
    asked = spied(
        monkeypatch, module, "fine_tuned", lambda _, *args, **__: (*args[4:6], len(args[3]))
    )
    with Run(tmp_path / "whole", config) as run:
        whole = evaluate(config, small_encoder(), run)
    assert set(whole) == {"finetuned_top1", "finetuned_mean_per_class"}
    tried = json.loads((tmp_path / "whole" / TRIED).read_text())
    grid = [(0.1, 0.0), (0.1, 1e-3), (0.01, 0.0), (0.01, 1e-2)]
    assert list(tried) == [f"{rate:g} {decay:g}" for rate, decay in grid]
    best = max(grid, key=lambda pair: tried[f"{pair[0]:g} {pair[1]:g}"])
    assert asked == [*((*pair, 48) for pair in grid), (*best, 60)]

    asked.clear()
    with Run(tmp_path / "stopped", config) as run:
        done = iter(range(100))

        def stop(*_: object) -> None:
            run.stopping = next(done) == 7  # after two trainings and two steps

        run._progress = stop
        with pytest.raises(Interrupted):
            evaluate(config, small_encoder(), run)
    with Run(tmp_path / "stopped", config) as run:
        assert evaluate(config, small_encoder(), run) == whole
    assert len(asked) == 2 + 3  # the third did not end


# Whole evaluations


@pytest.mark.parametrize(
    ("changes", "error", "word"),
    [
        ({"protocol": "fine-tuned-v1", "beside": "knn-200-v1"}, ValueError, "beside"),
        ({"probe_batch_norm": "train"}, ValueError, "probe"),
        ({"evaluate_on": "EuroSAT"}, UserError, "EuroSAT"),
        ({"protocol": "few-shot-5way-5shot-v1", "evaluate_on": "VOC2007"}, UserError, "VOC2007"),
        ({"evaluate_on": "Aircraft"}, UserError, "Aircraft"),
    ],
)
def test_what_has_no_meaning_is_refused(
    tmp_path: Path, changes: dict[str, Any], error: type[Exception], word: str
) -> None:
    config = dataclasses.replace(DIGITS, **{"protocol": "many-shot-linear-v1", **changes})
    with Run(tmp_path, config, data_root=tmp_path) as run, pytest.raises(error, match=word):
        evaluate(config, small_encoder(), run)


def test_a_projection_is_scored_but_not_fine_tuned(tmp_path: Path) -> None:
    def first(features: Tensor) -> Tensor:
        return features[:, :2]

    for protocol, metric, other in (
        ("many-shot-linear-small-v1", "many_shot_top1", "many_shot_mean_per_class"),
        ("few-shot-5way-5shot-v1", "few_shot_top1", "few_shot_interval"),
    ):
        config = dataclasses.replace(DIGITS, protocol=protocol)
        with Run(tmp_path / protocol, config) as run:
            whole = evaluate(config, small_encoder(), run)
            part = evaluate(config, small_encoder(), run, project=first)
        assert set(whole) == {metric, other}
        assert part[metric] < whole[metric]
    tuned = dataclasses.replace(config, protocol="fine-tuned-small-v1")
    with Run(tmp_path / "b", tuned) as run, pytest.raises(ValueError, match="backbone"):
        evaluate(tuned, small_encoder(), run, project=first)


@pytest.mark.parametrize(
    ("protocol", "share"),
    [("many-shot-linear-small-v1", 1.0), ("few-shot-5way-5shot-v1", 1 / 1.15)],
)
def test_what_is_kept_of_images_on_disk_is_the_programs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, protocol: str, share: float
) -> None:
    """The whole shorter side for regressions; in episodes what few_shot.py's crop leaves."""
    shares = spied(monkeypatch, module, "embed", lambda *_, crop_fraction, **__: crop_fraction)
    config = dataclasses.replace(DIGITS, protocol=protocol)
    with Run(tmp_path, config) as run:
        evaluate(config, small_encoder(), run)
    assert shares == [share, share]
