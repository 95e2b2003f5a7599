import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from shared.experiment.trial import Cost
from video import cost as module
from video.config import EMBEDDED, Config
from video.cost import estimate, lengths_of, passes, seconds_of_pass

SMALL = dataclasses.replace(Config(), precision="float32").reduced()


# On a CPU clips of 8 frames of 64 pixels are timed, of 32 frames of 128: 16 times as many pixels.
LARGER = 1 if torch.cuda.is_available() else 16


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Costs that are not measured, and what was asked for."""
    questions: list[dict[str, Any]] = []

    def known(train: object, config: Config, deciding: dict[str, Any], **sizes: int) -> Cost:
        questions.append(deciding)
        return Cost(per_step=0.1, per_item=0.02 / LARGER, fixed=1e8, kept=1e7 / LARGER)

    monkeypatch.setattr(module, "cost_of", known)
    monkeypatch.setattr(module, "seconds_of_loss", lambda *_: 0.3)
    return questions


def write_lists(root: Path, train: list[str], test: list[str]) -> None:
    folder = root / "ucfTrainTestlist"
    folder.mkdir()
    (folder / "trainlist01.txt").write_text("".join(f"{path} 1\n" for path in train))
    (folder / "testlist01.txt").write_text("".join(f"{path}\n" for path in test))


def test_steps_windows_crops_and_views_are_counted(
    asked: list[dict[str, Any]], tmp_path: Path
) -> None:
    # 91 frames have (91 - 32) // 15 + 1 = 4 windows.
    evaluated = 4 * (819 + 306) + 100 * 819 + 10 * 4 * 306
    assert passes(Config(), [91] * 819, [91] * 306) == evaluated
    assert passes(Config(probe_views=4), [91], [20, 91]) == 4 + 5 + 4 + 50
    for changes, steps in (({}, 300 * 6), ({"epochs": 2, "seed": 4}, 12), ({"train": False}, 0)):
        minutes, _ = estimate(dataclasses.replace(Config(), **changes), tmp_path)
        assert 60 * minutes == pytest.approx(steps * (0.4 + 128 * 0.02) + evaluated * 0.005)
    assert all(each == asked[0] for each in asked)
    estimate(dataclasses.replace(Config(), width=0.5), tmp_path)
    assert asked[-1] == {**asked[0], "width": 0.5}
    # Of SimCLR's step, which has a way back for both clips, a pass is a smaller share.
    minutes, _ = estimate(dataclasses.replace(Config(), method="simclr", train=False), tmp_path)
    assert 60 * minutes == pytest.approx(evaluated * 0.02 / 6)


def test_a_feature_without_training_costs_its_passes(
    asked: list[dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "seconds_of_pass", lambda config: 0.001 / LARGER)
    config = Config(network="thumbnail", train=False)
    minutes, size = estimate(config, tmp_path)
    assert 60 * minutes == pytest.approx(0.001 * passes(config, [91] * 819, [91] * 306))
    assert 1e9 * size == pytest.approx(0.6e9)
    assert asked == []


def test_batch_norms_are_calibrated_in_one_more_pass(
    asked: list[dict[str, Any]], tmp_path: Path
) -> None:
    untrained, calibrated = (
        estimate(Config(train=False, calibrate=calibrate), tmp_path)[0]
        for calibrate in (False, True)
    )
    assert 60 * (calibrated - untrained) == pytest.approx(819 * 0.005)


def test_windows_are_as_many_as_the_configuration_takes() -> None:
    config = Config(clip_frames=8, windows=10, probe_views=4)
    assert passes(config, [91], [20, 91]) == 10 + 15 + 4 + 150


def test_memory_follows_the_batch_and_the_frozen_network(
    asked: list[dict[str, Any]], tmp_path: Path
) -> None:
    for changes, clips in (({}, 128), ({"batch_size": 4}, 6.4), ({"train": False}, 6.4)):
        _, size = estimate(dataclasses.replace(Config(), **changes), tmp_path)
        assert 1e9 * size == pytest.approx(0.6e9 + 1e8 + clips * 1e7)


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
    asked: list[dict[str, Any]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for modality in ("rgb", "flow", "flow"):
        estimate(dataclasses.replace(Config(), modality=modality), tmp_path)
    (line,) = capsys.readouterr().out.splitlines()
    minutes = round(0.34 * 91 * 1125 / 60)
    assert line.startswith("optical flow: 1125 of 1125 videos have none yet")
    assert f"about {minutes} minutes of one core" in line
    estimate(dataclasses.replace(Config(), modality="flow", flow="dis"), tmp_path)
    (line,) = capsys.readouterr().out.splitlines()
    assert f"about {round(0.34 / 125 * 91 * 1125 / 60)} minutes of one core" in line
    estimate(dataclasses.replace(Config(), modality="flow", dataset=EMBEDDED), tmp_path)
    assert capsys.readouterr().out == ""


def test_a_pass_of_a_thumbnail_takes_its_time() -> None:
    found = seconds_of_pass(dataclasses.replace(SMALL, network="thumbnail", train=False))
    assert 0 < found < 0.1


@pytest.mark.slow
def test_real_steps_are_timed_and_cost_more_where_there_is_more(tmp_path: Path) -> None:
    torch.set_num_threads(1)
    first, size = estimate(SMALL, tmp_path)
    assert 0 < first < 1
    assert 0.6 < size < 1
    many, _ = estimate(dataclasses.replace(SMALL, epochs=400), tmp_path)
    assert many > 20 * first
    wide, larger = estimate(dataclasses.replace(SMALL, size=128, clip_frames=32), tmp_path)
    assert wide > 4 * first
    assert larger > size
