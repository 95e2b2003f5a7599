"""The video table: what the gate does not hold of it.

``tests/gate`` holds the configuration of every cell, and a table checks itself when it is made.
"""

from pathlib import Path

import numpy as np
import torch

from shared.experiment.published import load_notes
from video import augmentation
from video.config import Config
from video.data import _resized, stored_side
from video.encoder import check
from video.tables import CLAIMED, PUBLISHED, TABLE_5, TABLES

ROOT = Path(__file__).resolve().parents[2]


def test_every_row_states_its_own_deviation() -> None:
    assert len({row.deviation for row in TABLE_5.rows}) == len(TABLE_5.rows)
    for table in TABLES["mmcl"]:
        for row in table.rows:
            additional = row.deviation.startswith("Not reported for video by any paper")
            assert additional is (row.published is None)
            assert "{" not in row.deviation


def test_the_rows_with_one_seed_more_are_those_of_the_claims() -> None:
    for table in TABLES["mmcl"][:2]:
        comparisons = [each for claim in table.claims for each in claim.comparisons]
        claimed = {label for each in comparisons for label in (each.better, each.than)}
        assert claimed == set(CLAIMED)


def test_every_configuration_has_a_meaning() -> None:
    for table in TABLES["mmcl"]:
        for tier in table.tiers:
            for cell in table.cells(tier):
                assert isinstance(cell.config, Config)
                check(cell.config)


def test_tables_say_how_flow_is_augmented_and_what_retrieval_crops() -> None:
    """And the code does it."""
    said = " ".join(load_notes(PUBLISHED / "notes.toml").text("program").split())
    assert "flow is pretrained with crop and flip alone" in said
    for table in TABLES["mmcl"]:
        assert any(said in " ".join(note.split()) for note in table.notes)
    drawn = augmentation.parameters("flow", 0, 0, torch.arange(500), 0, height=32, width=40)
    for what in (drawn.jitter, drawn.gray, drawn.blur):
        assert not what.any()
    edge = torch.zeros(1, 3, 1, 32, 40, dtype=torch.uint8)
    edge[..., 0, :] = 255  # the first row, which a crop of 7/8 leaves out
    paper, small, closed = TABLES["mmcl"]
    for table, whole in ((paper, False), (small, True), (closed, True)):
        told = any("takes the whole short side" in " ".join(note.split()) for note in table.notes)
        assert told is whole is not table.protocol.endswith("v3")
    assert float(augmentation.centre(edge, 32)[..., 0, :].min()) > 0


def test_a_note_tells_to_which_size_frames_are_reduced() -> None:
    small = TABLES["mmcl"][1]
    config = small.cells("short")[0].config
    assert isinstance(config, Config)
    height, width, _ = _resized(np.zeros((96, 128, 3), np.uint8), stored_side(config.size)).shape
    assert any(f"frames that were reduced to {width} x {height} pixels" in n for n in small.notes)
    side = stored_side(Config().size)
    assert any(f"a shorter side of {side} pixels" in note for note in TABLE_5.notes)


def test_the_epochs_of_the_printed_baseline_are_told_by_number() -> None:
    page = " ".join((ROOT / "docs/papers.md").read_text().split())
    (told,) = (text for text in page.split("- **") if text.startswith("Video.**"))
    settings = TABLES["mmcl"][0].setting("paper").differences_of("mmcl")
    for text in (told, " ".join(settings), load_notes(PUBLISHED / "notes.toml").text("moco")):
        for epochs in ("500", "399", "396"):
            assert epochs in text
