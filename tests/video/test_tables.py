"""The video table: what the gate does not hold of it.

``tests/gate`` holds the configuration of every cell, and a table checks itself when it is made.
"""

import torch

from video import augmentation
from video.tables import CLAIMED, TABLES


def test_the_rows_with_one_seed_more_are_those_of_the_claims() -> None:
    for table in TABLES["mmcl"][:2]:
        comparisons = [each for claim in table.claims for each in claim.comparisons]
        claimed = {label for each in comparisons for label in (each.method, each.baseline)}
        assert claimed == set(CLAIMED)


def test_flow_is_pretrained_with_crop_and_flip_alone_as_the_tables_say() -> None:
    drawn = augmentation.parameters("flow", 0, 0, torch.arange(500), 0, height=32, width=40)
    for what in (drawn.jitter, drawn.gray, drawn.blur):
        assert not what.any()
