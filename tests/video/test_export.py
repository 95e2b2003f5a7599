import dataclasses
import hashlib
import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from shared.command.reproduce import main
from shared.errors import UserError
from shared.experiment.data import SUMS
from shared.experiment.export import CONFIG, FILE
from shared.experiment.runs import Run
from video.config import EMBEDDED, Config
from video.data import load
from video.encoder import S3D
from video.evaluation import evaluate
from video.export import load_encoder, save_encoder, write

SMALL = dataclasses.replace(
    Config(),
    width=0.125,
    clip_frames=8,
    size=32,
    batch_norm_momentum=0.2,
    batch_norm_epsilon=1e-3,
)
METRICS = {
    "top1": 61.25,
    "top1_low": 55.5,
    "top1_high": 66.5,
    "R@1": 40.5,
    "details": {"classes": 9, "training_videos": 819, "test_videos": 306},
}


def trained(config: Config = SMALL) -> S3D:
    """An encoder with weights and statistics that no initialisation gives, in training mode."""
    torch.manual_seed(3)
    encoder = S3D(
        width=config.width,
        momentum=config.batch_norm_momentum,
        epsilon=config.batch_norm_epsilon,
    )
    with torch.no_grad():
        for item in [*encoder.parameters(), *encoder.buffers()]:
            if item.is_floating_point():
                item += 0.05 * torch.rand_like(item)
    return encoder


def finished(folder: Path, config: Config = SMALL, tier: str = "short") -> S3D:
    """The folder of a finished run, without the training."""
    with Run(folder, config, tier=tier) as run:
        run.record_data(ucf101="5f" * 32)
        encoder = trained(config)
        save_encoder(encoder, folder, config=config)
        run.finish(METRICS)
    return encoder


def clips(config: Config = SMALL) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(2, 3, config.clip_frames, config.size, config.size, generator=generator)


def card_of(target: Path) -> str:
    return (target / "README.md").read_text()


def blocks(card: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", card, re.DOTALL)


def test_an_encoder_comes_back_as_it_was(tmp_path: Path) -> None:
    encoder = trained()
    save_encoder(encoder, tmp_path / "deep" / "run", config=SMALL)
    assert encoder.training
    before = torch.get_rng_state()
    loaded = load_encoder(tmp_path / "deep" / "run" / FILE)
    assert torch.equal(torch.get_rng_state(), before)
    assert not loaded.training
    norm = next(item for item in loaded.modules() if isinstance(item, torch.nn.BatchNorm3d))
    assert (norm.eps, norm.momentum) == (1e-3, 0.2)
    assert torch.equal(loaded(clips()), encoder.eval()(clips()))
    assert loaded(clips()).std(0).max() > 1e-6  # the clips differ


def test_another_width_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no S3D of width 0\.25"):
        save_encoder(trained(), tmp_path, config=dataclasses.replace(SMALL, width=0.25))
    assert not (tmp_path / FILE).exists()


def test_an_export_can_be_checked_and_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder = finished(tmp_path / "run")
    target = write(tmp_path / "run", tmp_path / "deep" / "export")
    assert {path.name for path in target.iterdir()} == {FILE, CONFIG, SUMS, "README.md"}
    for line in (target / SUMS).read_text().splitlines():
        digest, name = line.split("  ")
        assert hashlib.sha256((target / name).read_bytes()).hexdigest() == digest
    assert torch.equal(load_encoder(target)(clips()), encoder.eval()(clips()))
    monkeypatch.chdir(target)
    names: dict[str, Any] = {}
    (code,) = blocks(card_of(target))  # torchvision has no narrow S3D
    exec(code, names)
    assert names["features"].shape == (1, encoder.dim)


def test_the_card_has_the_measured_numbers(tmp_path: Path) -> None:
    finished(tmp_path / "run")
    card = card_of(write(tmp_path / "run", tmp_path / "export"))
    header = card.split("---\n", 2)[1]
    front = {
        key: json.loads(value)
        for key, value in (line.split(": ", 1) for line in header.splitlines())
    }
    (result,) = front["model-index"][0]["results"]
    assert {"type": "accuracy", "name": "R@1", "value": 40.5} in result["metrics"]
    assert "| top1 | 61.25 |" in card
    assert "- test videos: 306" in card
    assert "moco\nwith the loss `info_nce`, 300 epochs, batches of 128, seed 0" in card
    assert "tier `short`): its numbers cannot stand beside published ones" in card
    assert f"- ucf101: SHA-256 `{'5f' * 32}`" in card
    untrained = dataclasses.replace(SMALL, train=False, modality="flow")
    finished(tmp_path / "untrained", untrained, tier="paper")
    card = card_of(write(tmp_path / "untrained", tmp_path / "export"))
    assert "# s3d-ucf101-flow-untrained\n" in card
    assert "not trained at all" in card
    assert "TV-L1 flow" in card
    assert "info_nce, 300" not in card


def test_at_full_width_torchvision_alone_loads_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = dataclasses.replace(Config(), clip_frames=8, size=32)
    encoder = finished(tmp_path / "run", config)
    target = write(tmp_path / "run", tmp_path / "export")
    monkeypatch.chdir(target)
    names: dict[str, Any] = {}
    exec(blocks(card_of(target))[1], names)
    encoder.eval()
    expected, found = encoder(clips(config)), names["encoder"](clips(config))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)
    assert expected.std(0).max() > 1e-6


@pytest.mark.parametrize("change", ["bit", "metadata", "missing", "foreign", "truncated"])
def test_damage_is_named(tmp_path: Path, change: str) -> None:
    finished(tmp_path / "run")
    target = write(tmp_path / "run", tmp_path / "export")
    file = target / FILE
    state = load_file(file)
    if change == "bit":
        content = bytearray(file.read_bytes())
        content[-1] ^= 1
        file.write_bytes(content)
        with pytest.raises(UserError, match="SHA-256"):
            load_encoder(target)
        return
    if change == "metadata":
        save_file(state, file)
    elif change == "missing":
        state.popitem()
        save_file(state, file, {"width": "0.125"})
    elif change == "foreign":
        kept = {"width": "0.125", "batch_norm_momentum": "0.1", "batch_norm_epsilon": "0.1"}
        save_file({**state, "head": torch.zeros(1)}, file, kept)
    else:
        file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(UserError, match="damaged or edited") as error:
        load_encoder(file)
    assert str(file) in str(error.value)
    assert "\n" not in str(error.value)
    (target / SUMS).unlink()
    with pytest.raises(UserError, match="an export wrote"):
        load_encoder(target)


def test_what_cannot_be_exported_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="not a finished run"):
        write(tmp_path / "nothing", tmp_path / "export")
    finished(tmp_path / "smoke", tier="smoke")
    with pytest.raises(UserError, match="smoke run proves the path only"):
        write(tmp_path / "smoke", tmp_path / "export")
    finished(tmp_path / "run")
    (tmp_path / "run" / FILE).unlink()
    with pytest.raises(UserError, match="there is no such file"):
        write(tmp_path / "run", tmp_path / "export")
    assert not (tmp_path / "export").exists()


@pytest.mark.slow
def test_the_verb_scores_an_export(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    finished(tmp_path / "run")
    target = write(tmp_path / "run", tmp_path / "out")
    out = tmp_path / "found.json"
    words = ["evaluate", "video", str(target), "--data", EMBEDDED, "--data-root", str(tmp_path)]
    assert main([*words, "--protocol", "coclr-linear-retrieval-v1", "--out", str(out)]) == 0
    assert "took every tensor of S3D of width 0.125" in capsys.readouterr().out
    found = json.loads(out.read_text())["protocols"]["coclr-linear-retrieval-v1"]
    with Run(tmp_path / "own", dataclasses.replace(SMALL, dataset=EMBEDDED)) as run:
        videos = load(EMBEDDED, tmp_path, size=32)
        config = dataclasses.replace(SMALL, protocol="coclr-linear-retrieval-v1")
        expected = evaluate(config, load_encoder(target), videos, run)
    assert found["metrics"]["R@1"] == expected["R@1"]
    assert found["metrics"]["top1"] == expected["top1"]
    assert main([*words, "--protocol", "coclr"]) == 2
    assert "no protocol 'coclr'" in capsys.readouterr().err
