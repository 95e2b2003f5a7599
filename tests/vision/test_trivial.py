"""Features without any learning, and batch norms set to the statistics of images."""

import dataclasses
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torchvision.transforms.v2.functional import center_crop

from shared.experiment.run import Run
from vision.config import Config
from vision.datasets import describe
from vision.encoder import make_encoder
from vision.features import as_test_images, embed
from vision.images import ImageFiles, Images
from vision.train import measure as train
from vision.trivial import Trivial, calibrate

CIFAR10 = describe("CIFAR10")


def pictures(count: int = 6, side: int = 32) -> Images:
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (count, 3, side, side), generator=generator, dtype=torch.uint8)
    return Images(pixels, torch.arange(count))


def test_thumbnails_are_means_of_four_by_four_and_histograms_counts_of_boxes() -> None:
    images = pictures()
    thumbnails, histograms = (
        embed(
            Trivial(kind, CIFAR10.mean, CIFAR10.std),
            images,
            32,
            CIFAR10.mean,
            CIFAR10.std,
            precision="bfloat16",
        ).numpy()
        for kind in ("thumbnail", "histogram")
    )
    normalised = as_test_images(images.pixels, 32, CIFAR10.mean, CIFAR10.std)
    expected = normalised.view(6, 3, 8, 4, 8, 4).mean((3, 5)).flatten(1)
    np.testing.assert_allclose(thumbnails, expected, rtol=1e-5, atol=1e-6)
    assert histograms.shape == (6, 64)
    for image, row in zip(images.pixels.numpy(), histograms, strict=True):
        counts = np.zeros(64)
        for red, green, blue in image.reshape(3, -1).T:
            counts[red // 64 * 16 + green // 64 * 4 + blue // 64] += 1
        np.testing.assert_allclose(row, counts / 1024)


def test_calibrated_batch_norms_pass_on_standardised_features() -> None:
    torch.manual_seed(0)
    images = pictures(512, side=8)
    network = make_encoder("resnet8", "small")
    before = {name: item.clone() for name, item in network.named_parameters()}
    calibrate(network, images, 8, CIFAR10.mean, CIFAR10.std)
    assert network.training
    assert all(torch.equal(item, before[name]) for name, item in network.named_parameters())
    assert network.bn1.momentum == 0.1
    # Two batches of 256 in eval mode: what the first batch norm gives has mean 0, deviation 1.
    network.eval()
    seen: list[torch.Tensor] = []
    network.bn1.register_forward_hook(lambda _, __, output: seen.append(output.clone()))
    embed(network, images, 8, CIFAR10.mean, CIFAR10.std)
    output = torch.cat(seen).transpose(0, 1).flatten(1)
    torch.testing.assert_close(output.mean(1), torch.zeros(32), atol=1e-4, rtol=0)
    torch.testing.assert_close(output.std(1), torch.ones(32), atol=1e-2, rtol=0)


def test_images_on_disk_calibrate_as_those_in_memory(tmp_path: Path) -> None:
    pixels = torch.randint(0, 256, (12, 3, 8, 8), dtype=torch.uint8)
    files = tuple(tmp_path / f"{number}.png" for number in range(12))
    for file, image in zip(files, pixels, strict=True):
        Image.fromarray(image.permute(1, 2, 0).numpy()).save(file)
    labels = torch.zeros(12, dtype=torch.int64)
    made = []
    # 7 of 8 pixels are kept of images on disk.
    for images in (ImageFiles(files, labels), Images(center_crop(pixels, [7, 7]), labels)):
        torch.manual_seed(0)
        network = make_encoder("resnet8")
        calibrate(network, images, 7, CIFAR10.mean, CIFAR10.std)
        made.append(network.state_dict())
    for name, item in made[0].items():
        torch.testing.assert_close(item, made[1][name])


def test_a_trivial_baseline_runs_without_a_network_whatever_the_seed(tmp_path: Path) -> None:
    scores = []
    for seed in (0, 1):
        config = dataclasses.replace(
            Config().reduced(), features="pixels", epochs=0, protocol="linear-l2-v1", seed=seed
        )
        with Run(tmp_path / str(seed), config) as run:
            scores.append(train(config, run))
        assert not (tmp_path / str(seed) / "encoder.safetensors").exists()
    assert scores[0] == scores[1]
    assert set(scores[0]) == {"knn_top1", "l2_top1"}
    assert float(scores[0]["l2_top1"]) > 80  # pixels of digits are good features
