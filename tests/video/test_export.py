import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from shared.command.reproduce import main
from shared.experiment.export import CARD
from shared.experiment.run import Run
from video import export
from video.config import Config
from video.encoder import encoder_of
from video.evaluation import evaluate
from video.export import load_encoder, save_encoder, write

SMALL = dataclasses.replace(
    Config(), width=0.125, clip_frames=8, size=32, batch_norm_momentum=0.2, batch_norm_epsilon=1e-3
)


def finished(folder: Path, config: Config = SMALL) -> nn.Module:
    """A finished run's folder, with weights and statistics that no initialisation gives."""
    torch.manual_seed(3)
    encoder = encoder_of(config)
    with torch.no_grad():
        for item in [*encoder.parameters(), *encoder.buffers()]:
            if item.is_floating_point():
                item += 0.05 * torch.rand_like(item)
    with Run(folder, config, tier="short") as run:
        run.record_data(ucf101="5f" * 32)
        save_encoder(encoder, folder, config=config)
        run.finish({"top1": 61.25, "top1_low": 55.5, "R@1": 40.5, "details": {"test_videos": 306}})
    return encoder.eval()


def clips(config: Config = SMALL) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(2, 3, config.clip_frames, config.size, config.size, generator=generator)


def test_an_encoder_comes_back_with_its_batch_norms(tmp_path: Path) -> None:
    finished(tmp_path / "run")
    target = write(tmp_path / "run", tmp_path / "export")
    norm = next(item for item in load_encoder(target).modules() if isinstance(item, nn.BatchNorm3d))
    assert (norm.eps, norm.momentum) == (1e-3, 0.2)
    finished(tmp_path / "flow", dataclasses.replace(SMALL, train=False, modality="flow"))
    assert "TV-L1" in (write(tmp_path / "flow", tmp_path / "other") / CARD).read_text()


def test_the_code_of_the_card_loads_a_network_of_pytorchvideo(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("pytorchvideo")
    config = dataclasses.replace(Config(), network="x3d_xs", clip_frames=8, size=32)
    encoder = finished(tmp_path / "run", config)
    target = write(tmp_path / "run", tmp_path / "export")
    monkeypatch.chdir(target)
    (code,) = re.findall(r"```python\n(.*?)```", (target / CARD).read_text(), re.DOTALL)
    with torch.no_grad():
        expected = encoder(clips(config))
    assert expected.std(0).max() > 1e-6
    use = "torch.zeros(1, 3, 8, 32, 32)"
    assert use in code
    names: dict[str, Any] = {"clips": clips(config)}
    with torch.no_grad():
        exec(code.replace(use, "clips"), names)
    torch.testing.assert_close(names["features"], expected, rtol=1e-4, atol=1e-6)


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
    finished(tmp_path / "run")
    target, out = write(tmp_path / "run", tmp_path / "out"), tmp_path / "found.json"
    words = ["evaluate", "video", str(target), "--data", "ucf101"]
    words += ["--data-root", str(tmp_path / "data"), "--out", str(out)]
    assert main([*words, "--protocol", "coclr-finetune-v1", "--split", "all"]) == 0
    metrics = json.loads(out.read_text())["protocols"]["coclr-finetune-v1"]["metrics"]
    for fold in (1, 2, 3):
        details = metrics["details"][f"split{fold}"]
        assert (details["classes"], details["training_videos"], details["test_videos"]) == (
            9,
            45,
            18,
        )
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
