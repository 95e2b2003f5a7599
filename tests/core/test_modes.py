"""Evaluation mode for a while."""

import pytest
from torch import nn

from shared.modes import evaluating


@pytest.mark.parametrize("training", [True, False])
def test_every_part_has_its_former_mode_again(training: bool) -> None:
    network = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2), nn.Dropout()).train(training)
    network[1].eval()  # frozen
    network[2].train()
    with evaluating(network):
        assert not any(part.training for part in network.modules())
    assert [part.training for part in network.modules()] == [training, training, False, True]


def test_the_mode_is_restored_after_an_error() -> None:
    network = nn.Dropout()
    with pytest.raises(ValueError, match="no images"), evaluating(network):
        raise ValueError("no images")
    assert network.training
