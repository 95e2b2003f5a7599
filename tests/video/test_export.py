"""Encoders in files: scored by the command line, and a training that starts from one."""

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torchvision.models.video import s3d

from shared.command.reproduce import main
from shared.errors import UserError
from shared.experiment.initial import InitialWeights
from shared.experiment.run import Run
from video import export
from video.config import Config
from video.encoder import Networks, encoder_of
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


# Training that starts from weights of torchvision and pytorchvideo

CLIPS = dataclasses.replace(Config().reduced(), size=17, head_hidden=16, head_output=8)


def test_torchvision_s_s3d_starts_encoder_and_teacher(tmp_path: Path) -> None:
    state = s3d().state_dict()  # with its classifier
    torch.save({"state_dict": state}, tmp_path / "s3d.pth")
    init = InitialWeights.of(tmp_path / "s3d.pth")
    with pytest.raises(UserError, match="batch_norm_epsilon"):  # torchvision's S3D has another
        Networks(dataclasses.replace(CLIPS, width=1.0, init=init), queue=8)
    config = dataclasses.replace(CLIPS, width=1.0, batch_norm_epsilon=1e-3, init=init)
    networks = Networks(config, queue=8)
    for encoder in (networks.encoder, networks.teacher.encoder):
        for name, tensor in encoder.state_dict().items():
            assert torch.equal(tensor, state[name]), name
    with pytest.raises(UserError, match="S3D"):
        Networks(dataclasses.replace(CLIPS, init=init), queue=8)


@pytest.mark.parametrize(
    ("field", "value"),
    [("batch_norm_epsilon", 1e-2), ("modality", "flow"), ("strides", (2, 2, 2, 2, 2))],
)
def test_an_export_that_computes_something_else_is_refused(
    tmp_path: Path, field: str, value: object
) -> None:
    config = dataclasses.replace(CLIPS, network="r2plus1d" if field == "strides" else "s3d")
    torch.manual_seed(3)
    first = encoder_of(config)
    save_encoder(first, tmp_path / "export", config=config)
    init = InitialWeights.of(tmp_path / "export")
    networks = Networks(dataclasses.replace(config, init=init), queue=8)
    for name, tensor in networks.encoder.state_dict().items():
        assert torch.equal(tensor, first.state_dict()[name]), name
    with pytest.raises(UserError, match=f"its {field} is"):
        Networks(dataclasses.replace(config, init=init, **{field: value}), queue=8)


@pytest.mark.slow
def test_the_network_of_a_library_is_filled_through_its_wrapper(tmp_path: Path) -> None:
    pytest.importorskip("pytorchvideo")
    config = dataclasses.replace(CLIPS, network="x3d_xs", width=1.0, size=32)
    torch.manual_seed(3)
    whole = encoder_of(config).network
    torch.save(whole.state_dict(), tmp_path / "x3d.pth")
    init = InitialWeights.of(tmp_path / "x3d.pth")
    networks = Networks(dataclasses.replace(config, init=init), queue=8)
    for name, tensor in networks.encoder.network.state_dict().items():
        assert torch.equal(tensor, whole.state_dict()[name]), name
