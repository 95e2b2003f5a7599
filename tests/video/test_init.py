"""Pretraining on clips that starts from weights of torchvision and pytorchvideo."""

import dataclasses
from pathlib import Path

import pytest
import torch
from torchvision.models.video import s3d

from shared.errors import UserError
from shared.experiment.initial import InitialWeights
from video.config import Config
from video.encoder import Networks, encoder_of
from video.export import save_encoder

SMALL = dataclasses.replace(Config().reduced(), size=17, head_hidden=16, head_output=8)


def test_torchvision_s_s3d_starts_encoder_and_teacher(tmp_path: Path) -> None:
    state = s3d().state_dict()  # with its classifier
    torch.save({"state_dict": state}, tmp_path / "s3d.pth")
    init = InitialWeights.of(tmp_path / "s3d.pth")
    with pytest.raises(UserError, match="batch_norm_epsilon"):  # torchvision's S3D has another
        Networks(dataclasses.replace(SMALL, width=1.0, init=init), queue=8)
    config = dataclasses.replace(SMALL, width=1.0, batch_norm_epsilon=1e-3, init=init)
    networks = Networks(config, queue=8)
    for encoder in (networks.encoder, networks.teacher.encoder):
        for name, tensor in encoder.state_dict().items():
            assert torch.equal(tensor, state[name]), name
    with pytest.raises(UserError, match="S3D"):
        Networks(dataclasses.replace(SMALL, init=init), queue=8)


@pytest.mark.parametrize(
    ("field", "value"),
    [("batch_norm_epsilon", 1e-2), ("modality", "flow"), ("strides", (2, 2, 2, 2, 2))],
)
def test_an_export_that_computes_something_else_is_refused(
    tmp_path: Path, field: str, value: object
) -> None:
    config = dataclasses.replace(SMALL, network="r2plus1d" if field == "strides" else "s3d")
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
    config = dataclasses.replace(SMALL, network="x3d_xs", width=1.0, size=32)
    torch.manual_seed(3)
    whole = encoder_of(config).network
    torch.save(whole.state_dict(), tmp_path / "x3d.pth")
    init = InitialWeights.of(tmp_path / "x3d.pth")
    networks = Networks(dataclasses.replace(config, init=init), queue=8)
    for name, tensor in networks.encoder.network.state_dict().items():
        assert torch.equal(tensor, whole.state_dict()[name]), name
