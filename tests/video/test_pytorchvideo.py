"""What is used of pytorchvideo, and networks and videos of one's own."""

import dataclasses
import json
import os
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import torch
from torch import Tensor, nn

from shared.command.reproduce import main
from shared.errors import UserError
from shared.experiment.data import MissingData
from shared.experiment.run import Run
from tests.video.test_decoding import write_avi
from video.augmentation import augment, views, windows
from video.config import Config
from video.data import stored_side
from video.encoder import check, encoder_of
from video.evaluation import evaluate
from video.export import load_encoder, save_encoder
from video.flow import video_flow
from video.own import _square, folder, from_pytorchvideo
from video.train import pretrain

SMALL = dataclasses.replace(
    Config().reduced(), width=1.0, epochs=1, batch_size=4, method="simclr", clip_frames=8, size=32
)


@pytest.fixture
def library() -> Any:
    """The adapter, where pytorchvideo is installed."""
    pytest.importorskip("pytorchvideo")
    from video import pytorchvideo

    return pytorchvideo


def tiny() -> nn.Module:
    return nn.Sequential(nn.AdaptiveAvgPool3d(2), nn.Flatten(), nn.Linear(24, 6))


def middle(length: int, clip_frames: int) -> Tensor:
    return torch.tensor([(length - clip_frames) // 2])


@pytest.fixture
def shots(tmp_path: Path) -> Path:
    """Videos of two colours, of sides that differ, in two containers."""
    for split, count in (("train", 5), ("val", 2)):
        for label, name in enumerate(("blue", "red")):
            place = tmp_path / "shots" / split / name
            for number in range(count):
                pictures = []
                for time in range(9 + number):
                    level = 20 * number + 2 * time + 5 * (split == "val")
                    pixels = np.full((24 + 8 * label, 40, 3), level, np.uint8)
                    pixels[:, :, 2 - 2 * label] = 200
                    pictures.append(pixels)
                write_avi(place / f"{number}.avi", pictures)
    return tmp_path / "shots"


def test_a_folder_is_squares_in_memory_in_the_order_of_names(shots: Path) -> None:
    videos = folder(shots, 16)
    side = stored_side(16)
    assert videos.classes == ("blue", "red")
    assert videos.frames.shape == (int(videos.length.sum()), 3, side, side)
    assert [video.label for video in videos.videos] == [0] * 5 + [1] * 5 + [0] * 2 + [1] * 2
    assert videos.length.tolist() == [*range(9, 14)] * 2 + [9, 10] * 2
    assert videos.start.tolist() == [0, *videos.length.cumsum(0)[:-1].tolist()]
    assert len(videos.of(train=False).videos) == 4
    blue, red = (videos.frames[videos.start[place]].float() for place in (0, 5))
    assert blue[2].mean() > 150 > blue[0].mean()
    assert red[0].mean() > 150 > red[2].mean()
    assert len(folder(shots / "train", 16).videos) == 10


def test_folders_without_videos_are_refused(shots: Path) -> None:
    with pytest.raises(MissingData, match="none"):
        folder(shots / "none", 16)
    (shots / "val" / "green").mkdir()
    with pytest.raises(UserError, match="green"):
        folder(shots, 16)
    (shots / "empty" / "one").mkdir(parents=True)
    with pytest.raises(UserError, match=r"\.mp4"):
        folder(shots / "empty", 16)


def test_damaged_videos_are_all_named_or_left_out(shots: Path) -> None:
    blue = shots / "train" / "blue"
    (blue / "0.avi").write_bytes((blue / "0.avi").read_bytes()[:2000])
    (blue / "1.mp4").write_bytes(b"nothing")
    write_avi(blue / "2.avi", [np.zeros((24, 40, 3), np.uint8)])
    faults = r"3 of 15 .*train/blue/0.avi .*, train/blue/1.mp4 .*, train/blue/2.avi .*"
    with pytest.raises(UserError, match=faults + "--allow-missing"):
        folder(shots, 16)
    with pytest.warns(UserWarning, match=faults):
        videos = folder(shots, 16, skip_damaged=True)
    names = [Path(each.name).relative_to(shots).as_posix() for each in videos.videos]
    assert names[:4] == [*(f"train/blue/{number}.avi" for number in (1, 3, 4)), "train/red/0.avi"]
    assert videos.length.tolist() == [10, 12, 13, 9, 10, 11, 12, 13, 9, 10, 9, 10]
    pairs = [(str(file), {"label": 0}) for file in sorted(blue.iterdir())]
    with pytest.raises(UserError, match="3 of 6"):
        from_pytorchvideo(pairs, 16)


def test_a_flat_folder_serves_pretraining_alone(shots: Path, tmp_path: Path) -> None:
    flat = shots / "train" / "blue"
    os.rename(flat / "0.avi", os.fsencode(flat) + b"/caf\xe9.avi")  # not UTF-8
    config = dataclasses.replace(SMALL, network=tiny, size=16)
    videos = folder(flat, 16)
    assert [video.label for video in videos.videos] == [-1] * 5
    with Run(tmp_path / "run", config) as run:
        networks, _ = pretrain(config, videos, run)
        with pytest.raises(ValueError, match="without a label"):
            evaluate(config, networks.encoder, videos, run)


def test_one_s_own_network_and_windows_train_and_are_scored(shots: Path, tmp_path: Path) -> None:
    config = dataclasses.replace(
        SMALL, network=tiny, windows=middle, size=16, probe_epochs=2, probe_views=1
    )
    videos = folder(shots, 16)
    with Run(tmp_path / "run", config) as run:
        networks, _ = pretrain(config, videos.of(train=True), run)
        found = evaluate(config, networks.encoder, videos, run)
    assert networks.dim == 6
    assert found["R@1"] == 100.0  # two colours
    save_encoder(networks.encoder, tmp_path / "out", config=config)
    with pytest.raises(UserError, match="tiny"):
        load_encoder(tmp_path / "out" / "encoder.safetensors")
    again = load_encoder(tmp_path / "out" / "encoder.safetensors", tiny)
    clips = torch.randn(2, 3, 8, 16, 16)
    assert torch.equal(again(clips), networks.encoder.eval()(clips))


@pytest.mark.slow
def test_the_verb_scores_an_export_on_a_folder(
    shots: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = dataclasses.replace(SMALL, network="s3d", width=0.125)
    torch.manual_seed(0)
    encoder = encoder_of(config)
    for norm in encoder.modules():
        if isinstance(norm, nn.BatchNorm3d):
            norm.momentum = None
    encoder(torch.randn(4, 3, 8, 32, 32))
    save_encoder(encoder, tmp_path / "out", config=config)
    words = ["evaluate", "video", str(tmp_path / "out" / "encoder.safetensors")]
    words += ["--data", str(shots), "--out", str(tmp_path / "found.json")]
    assert main(words) == 0
    content = json.loads((tmp_path / "found.json").read_text())
    (found,) = content["protocols"].values()
    with Run(tmp_path / "own", config) as run:
        expected = evaluate(config, encoder.eval(), folder(shots, 32), run)
    assert found["metrics"]["R@1"] == expected["R@1"]
    assert list(found["environment"]["data"]) == [str(shots)]
    assert main([*words, "--protocol", "coclr"]) == 2
    assert "coclr" in capsys.readouterr().err


@pytest.mark.parametrize("flow", ["dis", "tvl1"])
def test_flow_of_a_folder_is_that_of_the_data_sets(shots: Path, tmp_path: Path, flow: str) -> None:
    threads = cv2.getNumThreads()
    videos = folder(shots / "train", 48, flow=flow)
    assert cv2.getNumThreads() == threads
    assert videos.modality == "flow"
    assert folder(shots / "train", 48).modality == "rgb"
    files = [Path(each.name) for each in videos.videos][:2]
    for number, file in enumerate(files):
        made = video_flow(file, tmp_path / "flow", flow)
        expected = np.stack([_square(each, stored_side(48)) for each in made])
        start, length = int(videos.start[number]), int(videos.length[number])
        found = videos.frames[start : start + length].permute(0, 2, 3, 1).numpy()
        assert np.array_equal(found, expected)


def test_videos_of_another_modality_are_refused(shots: Path, tmp_path: Path) -> None:
    config = dataclasses.replace(SMALL, network=tiny, modality="flow")
    with Run(tmp_path / "run", config) as run, pytest.raises(ValueError, match="'rgb'"):
        pretrain(config, folder(shots, 32), run)


@pytest.mark.parametrize(("length", "frames"), [(3, 8), (16, 16), (33, 8), (64, 32)])
def test_uniform_clips_of_the_library_are_our_windows(
    library: Any, length: int, frames: int
) -> None:
    from pytorchvideo.data.clip_sampling import (
        ConstantClipsPerVideoSampler,
        RandomClipSampler,
        UniformClipSampler,
    )

    ours, step = windows(length, frames), max(frames // 2 - 1, 1)
    found = library.starts_of(UniformClipSampler(frames, step), length, frames)
    assert found.tolist() == ours.tolist()
    seconds = library.starts_of(UniformClipSampler(frames / 25, step / 25), length, frames, rate=25)
    assert abs(len(seconds) - len(ours)) <= 1  # a last window may be lost to rounding
    assert seconds.tolist() == ours.tolist()[: len(seconds)]
    constant = library.starts_of(ConstantClipsPerVideoSampler(frames, 2), length, frames)
    assert constant.tolist() == sorted({0, round(max(length - frames, 0) / 2)})
    (start,) = library.starts_of(RandomClipSampler(frames), length, frames).tolist()
    assert 0 <= start <= max(length - frames, 0)


def test_its_data_sets_are_read_by_our_decoder(library: Any, shots: Path) -> None:
    from pytorchvideo.data import LabeledVideoDataset, make_clip_sampler
    from pytorchvideo.data.labeled_video_paths import LabeledVideoPaths

    ours = folder(shots, 16)
    train, test = (LabeledVideoPaths.from_path(str(shots / part)) for part in ("train", "val"))
    dataset = LabeledVideoDataset(train, make_clip_sampler("uniform", 1), decode_audio=False)
    found = from_pytorchvideo(dataset, 16, test=test)
    listed = [{v.name: (v.label, v.train) for v in each.videos} for each in (found, ours)]
    assert listed[0] == listed[1]
    place = [v.name for v in found.videos].index(ours.videos[7].name)
    theirs = found.frames[found.start[place] :][: found.length[place]]
    assert torch.equal(theirs, ours.frames[ours.start[7] :][: ours.length[7]])


@pytest.mark.parametrize("policy", ["randaugment", "augmix"])
def test_its_policies_are_functions_of_seed_and_video(library: Any, policy: str) -> None:
    clips = torch.randint(0, 256, (4, 3, 4, 20, 20), dtype=torch.uint8)
    settings: dict[str, Any] = {"seed": 3, "epoch": 1, "view": 0}

    def found(some: Tensor, policy: str = policy, **changes: Any) -> Tensor:
        return augment(clips[some], 16, samples=some, policy=policy, **{**settings, **changes})

    everything = torch.arange(4)
    before = torch.get_rng_state()
    first = found(everything)
    assert torch.equal(torch.get_rng_state(), before)
    torch.testing.assert_close(found(everything[2:]), first[2:])
    for change in ({"seed": 4}, {"epoch": 2}, {"view": 1}):
        assert not torch.equal(found(everything, **change), first)
    assert not torch.allclose(found(everything, "weak"), first)


@pytest.mark.parametrize(
    ("network", "width"),
    [
        ("x3d_xs", 192),
        pytest.param("r2plus1d_r50", 2048, marks=pytest.mark.slow),
        pytest.param("mvit_base_16x4", 768, marks=pytest.mark.slow),
    ],
)
def test_its_networks_train_a_step(
    library: Any, shots: Path, tmp_path: Path, network: str, width: int
) -> None:
    config = dataclasses.replace(SMALL, network=network, policy="randaugment", batch_size=4)
    videos = folder(shots, 32).of(train=True)
    check(config)
    torch.manual_seed(0)
    encoder = encoder_of(config)
    assert encoder.dim == width
    assert encoder.training
    first, _ = views(videos, torch.arange(4), config, 0)
    before = [item.detach().clone() for item in encoder.parameters()]
    optimiser = torch.optim.Adam(encoder.parameters(), lr=0.01)
    for _ in range(2):  # a block begins as the identity, so that the first step moves its last norm
        features = encoder(first)
        assert features.shape == (4, width)
        assert features.dtype == torch.float32
        optimiser.zero_grad()
        (features * torch.randn_like(features)).sum().backward()
        optimiser.step()
    moved = [not torch.equal(a, b) for a, b in zip(before, encoder.parameters(), strict=True)]
    assert sum(moved) > 0.9 * len(moved)
    save_encoder(encoder, tmp_path / "out", config=config)
    again = load_encoder(tmp_path / "out" / "encoder.safetensors")
    with torch.no_grad():
        assert torch.equal(again(first), encoder.eval()(first))
