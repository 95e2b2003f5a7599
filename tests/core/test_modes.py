"""Evaluation mode for a while."""

import pytest
from torch import nn

from shared.modes import evaluating


@pytest.mark.parametrize("training", [True, False])
def test_every_part_has_its_former_mode_again_also_after_an_error(training: bool) -> None:
    network = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2), nn.Dropout()).train(training)
    network[1].eval()  # frozen
    network[2].train()
    with pytest.raises(ZeroDivisionError), evaluating(network):  # divided by whether any trains
        1 // any(part.training for part in network.modules())
    assert [part.training for part in network.modules()] == [training, training, False, True]
