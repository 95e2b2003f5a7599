import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import pytest

from shared.command.reproduce import main
from shared.experiment.run import Run
from video import export
from video.config import Config
from video.encoder import encoder_of
from video.evaluation import evaluate
from video.export import save_encoder, write

SMALL = Config(width=0.125, clip_frames=8, size=32)


@pytest.mark.slow
def test_the_verb_fine_tunes_on_three_folds_of_nine_classes(
    tmp_path: Path,
    suite_data: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """UCF-101's own lists and videos, one clip of seven groups: two test in each fold."""
    if not (suite_data / "UCF-101").is_dir():
        pytest.skip("needs UCF-101 below SUITE_DATA")
    kept = re.compile(r"_g(01|02|08|09|15|16|22)_c01\b")
    lists = tmp_path / "data" / "ucfTrainTestlist"
    lists.mkdir(parents=True)
    for file in (suite_data / "ucfTrainTestlist").glob("*.txt"):
        lines = file.read_text().splitlines()
        if file.name != "classInd.txt":
            lines = [line for line in lines if kept.search(line)]
        (lists / file.name).write_text("\n".join(lines) + "\n")
    for video in (suite_data / "UCF-101").glob("*/*.avi"):
        if kept.search(video.name):
            place = tmp_path / "data" / "UCF-101" / video.parent.name
            place.mkdir(parents=True, exist_ok=True)
            (place / video.name).symlink_to(video)

    def short(config: Config, *others: Any) -> dict[str, Any]:
        return evaluate(dataclasses.replace(config, windows=1), *others, finetune_epochs=2)

    monkeypatch.setattr(export, "evaluate", short)
    with Run(tmp_path / "run", SMALL, tier="short") as run:
        save_encoder(encoder_of(SMALL), run.folder, config=SMALL)
        run.finish({"top1": 61.25, "R@1": 40.5})
    target, out = write(tmp_path / "run", tmp_path / "out"), tmp_path / "found.json"
    words = ["evaluate", "video", str(target), "--data", "ucf101"]
    words += ["--data-root", str(tmp_path / "data"), "--out", str(out)]
    assert main([*words, "--protocol", "coclr-finetune-v1", "--split", "all"]) == 0
    metrics = json.loads(out.read_text())["protocols"]["coclr-finetune-v1"]["metrics"]
    for fold in (1, 2, 3):
        details = metrics["details"][f"split{fold}"]
        counts = ("classes", "training_videos", "test_videos")
        assert [details[name] for name in counts] == [9, 45, 18]
        low, high = (metrics[f"top1_{end}_split{fold}"] for end in ("low", "high"))
        assert low <= metrics[f"top1_split{fold}"] <= high
    folds = [metrics[f"top1_split{fold}"] for fold in (1, 2, 3)]
    assert metrics["top1"] == pytest.approx(sum(folds) / 3)
    assert "top1_low" not in metrics
    capsys.readouterr()
    assert main([*words, "--split", "4"]) == 2
    assert "--split 4" in capsys.readouterr().err
    assert main([*words[:3], "--data", str(tmp_path), "--split", "2"]) == 2
    assert "--split" in capsys.readouterr().err
