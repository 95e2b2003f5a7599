from pathlib import Path

from tests.stages.drawing import drawn, rows_of, titles
from tests.stages.drawing import finish as finish_cell
from video.figures import FIGURES
from video.tables import TABLE_5


def finish(runs: Path, row: str, value: float) -> None:
    """The first RGB run of a row, without the training."""
    cell = TABLE_5.cells("paper", row=row, column="RGB linear", seeds=(0,))[0]
    values = {"top1": value, "R@1": value - 20}
    low = {f"{name}_low": number - 4 for name, number in values.items()}
    high = {f"{name}_high": number + 6 for name, number in values.items()}
    details = {"classes": 6, "training_videos": 24, "test_videos": 12}
    finish_cell(runs, cell, {**values, **low, **high, "details": details})


def test_accuracies_have_intervals_and_the_best_row_without_training(tmp_path: Path) -> None:
    finish(tmp_path, "untrained encoder", 40.0)
    finish(tmp_path, "MMCL INV, both views", 70.0)
    _, found = drawn({"mmcl": (TABLE_5,)}, FIGURES, "mmcl/table-5-accuracies", tmp_path)
    assert titles(found.figure) == ["RGB: linear, top-1", "RGB: retrieval, R@1"]
    assert rows_of(found.figure.axes[0]) == ["untrained encoder", "MMCL INV, both views"]
    for axis, shift in zip(found.figure.axes, (0, -20), strict=True):
        assert [[x + 0.0 for x in line.get_xdata()] for line in axis.lines] == [
            [36 + shift, 46 + shift],
            [40 + shift],
            [66 + shift, 76 + shift],
            [70 + shift],
            [40 + shift] * 2,
        ]
    assert "12 test videos of 6 classes" in found.caption
