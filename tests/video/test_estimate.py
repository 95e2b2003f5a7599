import dataclasses
import json
from pathlib import Path

import pytest
import torch

from video import estimate as module
from video.config import EMBEDDED, Config
from video.estimate import Calibration, estimate, lengths_of, passes
from video.tables import TABLE_5

SMALL = dataclasses.replace(Config(), precision="float32").reduced()


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Config]:
    """Costs that are not measured, and what was asked for."""
    configs = []

    def calibrate(config: Config) -> Calibration:
        configs.append(config)
        return Calibration(per_step=0.1, per_video=0.02, forward=0.005, fixed=10**8)

    monkeypatch.setattr(module, "_calibrations", {})
    monkeypatch.setattr(module, "_calibrate", calibrate)
    return configs


def write_lists(root: Path, train: list[str], test: list[str]) -> None:
    folder = root / "ucfTrainTestlist"
    folder.mkdir()
    (folder / "trainlist01.txt").write_text("".join(f"{path} 1\n" for path in train))
    (folder / "testlist01.txt").write_text("".join(f"{path}\n" for path in test))


def test_steps_windows_crops_and_views_are_counted(asked: list[Config], tmp_path: Path) -> None:
    # 91 frames have (91 - 32) // 15 + 1 = 4 windows.
    evaluated = 4 * (819 + 306) + 100 * 819 + 10 * 4 * 306
    assert passes(Config(), [91] * 819, [91] * 306) == evaluated
    assert passes(Config(probe_views=4), [91], [20, 91]) == 4 + 5 + 4 + 50
    for changes, steps in (({}, 300 * 6), ({"epochs": 2, "seed": 4}, 12), ({"train": False}, 0)):
        minutes, _ = estimate(dataclasses.replace(Config(), **changes), tmp_path)
        assert 60 * minutes == pytest.approx(steps * (0.1 + 128 * 0.02) + evaluated * 0.005)
    assert len(asked) == 1
    estimate(dataclasses.replace(Config(), width=0.5), tmp_path)
    assert len(asked) == 2


def test_memory_follows_batch_width_and_method(asked: list[Config], tmp_path: Path) -> None:
    clip = 480 * 32 * 128**2 * (1 if torch.cuda.is_available() else 2)
    sizes = [
        estimate(dataclasses.replace(Config(), **changes), tmp_path)[1]
        for changes in (
            {"method": "simclr"},
            {"method": "simclr", "width": 0.25},
            {"method": "moco"},
            {"train": False},
        )
    ]
    clips = [256, 64, 1.2 * 128, 0.2 * 64]
    for size, count in zip(sizes, clips, strict=True):
        assert 1e9 * size == pytest.approx(0.6e9 + 1e8 + count * clip)


def test_videos_that_are_there_are_counted(tmp_path: Path) -> None:
    config = dataclasses.replace(Config(), modality="flow")
    assert [len(part) for part in lengths_of(config, tmp_path)] == [819, 306]
    train = [f"Archery/v_Archery_g03_c{clip:02d}.avi" for clip in range(3)]
    write_lists(
        tmp_path, [*train, "Biking/v_Biking_g03_c01.avi"], ["Archery/v_Archery_g01_c01.avi"]
    )
    (tmp_path / "UCF-101" / "Archery").mkdir(parents=True)
    for path in [*train, "Archery/v_Archery_g01_c01.avi"]:
        (tmp_path / "UCF-101" / path).touch()
    assert lengths_of(config, tmp_path) == ([91, 91, 91], [91])
    kept = tmp_path / "prepared" / "video" / "ucf101-rgb-147-abc"
    kept.mkdir(parents=True)
    index = {"names": [Path(train[1]).stem, "v_Archery_g01_c01"], "lengths": [20, 33]}
    (kept / "index.json").write_text(json.dumps(index))
    assert lengths_of(config, tmp_path) == ([91, 20, 91], [33])
    assert [len(part) for part in lengths_of(SMALL, tmp_path)] == [24, 12]


def test_flow_that_lacks_is_stated_once(
    asked: list[Config], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for modality in ("rgb", "flow", "flow"):
        estimate(dataclasses.replace(Config(), modality=modality), tmp_path)
    (line,) = capsys.readouterr().out.splitlines()
    minutes = round(0.34 * 91 * 1125 / 60)
    assert line.startswith("optical flow: 1125 of 1125 videos have none yet")
    assert f"about {minutes} minutes of one core" in line
    estimate(dataclasses.replace(Config(), modality="flow", dataset=EMBEDDED), tmp_path)
    assert capsys.readouterr().out == ""


def test_real_steps_are_timed_and_cost_more_where_there_is_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.set_num_threads(1)
    monkeypatch.setattr(module, "_calibrations", {})
    first, size = estimate(SMALL, tmp_path)
    assert 0 < first < 1
    assert 0.6 < size < 1
    many, _ = estimate(dataclasses.replace(SMALL, epochs=400), tmp_path)
    assert many > 20 * first
    assert len(module._calibrations) == 1
    wide = dataclasses.replace(SMALL, size=128, clip_frames=32)
    large = module._calibrated(wide)
    (small, _) = module._calibrations.values()
    # Timed on 8 x 64 x 64: four times the pixels, and 16 times as many in the run.
    assert 16 < large.forward / small.forward < 300
    low_rank = TABLE_5.cells("short", row="CLLR(SimCLR+l21-norm), norm over batch")[0].config
    projected = dataclasses.replace(SMALL, method="simclr", objective=low_rank.objective)
    plain = dataclasses.replace(SMALL, method="simclr")
    dim = 128
    assert module._calibrated(projected).fixed - module._calibrated(plain).fixed == 16 * dim**2
