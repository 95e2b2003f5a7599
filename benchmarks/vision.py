"""Time of a pretraining step on images: what the network takes, and what everything else takes.

Run it as ``SUITE_DATA=data python benchmarks/vision.py`` or with ``--data-root data``, after
``./reproduce.sh data vision --dataset CIFAR10``; it needs the extra ``bench``. On a machine with a
GPU it measures there, otherwise on the CPU (``--threads``, ``--batch`` and ``--steps`` to taste).

It trains ResNet-18 with the CIFAR stem on real CIFAR-10 and prints medians over the steps after the
first:

* seconds of a SimCLR step, and the shares of network (both passes and the optimiser), augmentation
  and loss in it;
* the same step written with lightly's transforms and NTXentLoss behind a DataLoader, in turns with
  ours in the same process, same network, optimiser and precision;
* what the losses add to a step in place of SimCLR's: MMCL in closed form and by projected gradient,
  for the batch sizes of ``--losses``, from the projected embeddings to their gradients (MMCL,
  Figure 3b);
* the share that the step has of the device's arithmetic peak: on a CPU, what a product of two large
  matrices reaches in the same precision and threads; on a GPU ``--peak`` TFLOP/s, and there the
  same step compiled. ``--small`` takes the network of the tier on CIFAR-10, without lightly.
"""

import argparse
import dataclasses
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from PIL import Image
from torch.utils.data import DataLoader, Dataset
from torch.utils.flop_counter import FlopCounterMode

from shared import Criterion, Objective, info_nce, max_margin, query_key, term, two_views
from shared.experiment.data import data_root
from shared.precision import bfloat16, native_bfloat16
from vision.config import Config
from vision.data import DATASETS, Images, load
from vision.methods import Networks, compare
from vision.train import batches, make_optimiser

CIFAR10 = DATASETS["CIFAR10"]


class Stopwatch:
    """Seconds by name; waits for the device at both ends of what it times."""

    def __init__(self, device: str) -> None:
        self.device = device
        self.seconds: defaultdict[str, list[float]] = defaultdict(list)

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        """Time the block under ``name``."""
        self._wait()
        start = time.perf_counter()
        yield
        self._wait()
        self.seconds[name].append(time.perf_counter() - start)

    def median(self, name: str) -> float:
        """Over all but the first, which warms up."""
        return statistics.median(self.seconds[name][1:] or self.seconds[name])

    def _wait(self) -> None:
        if self.device == "cuda":
            torch.cuda.synchronize()


class Pictures(Dataset[tuple[tuple[Tensor, ...], int]]):
    """CIFAR-10 as PIL images under a transform, one at a time."""

    def __init__(self, images: Images, transform: Callable[[Image.Image], list[Tensor]]) -> None:
        self.pixels = images.pixels.permute(0, 2, 3, 1).numpy()
        self.transform = transform

    def __len__(self) -> int:
        return len(self.pixels)

    def __getitem__(self, index: int) -> tuple[tuple[Tensor, ...], int]:
        return tuple(self.transform(Image.fromarray(self.pixels[index]))), index


class Ours:
    """A step as ``vision.train`` does it."""

    def __init__(self, config: Config, images: Images, device: str, steps: int) -> None:
        torch.manual_seed(0)
        self.config, self.watch = config, Stopwatch(device)
        self.networks = Networks(config).to(device)
        self.criterion = Criterion(config.objective, self.networks.dim).to(device)
        self.optimiser = make_optimiser(config, nn.ModuleList([self.networks, self.criterion]))
        if config.compile:
            self.networks.encoder.compile()
        self.batches = batches(config, images, device, 0, steps, mean=CIFAR10.mean, std=CIFAR10.std)

    def step(self) -> None:
        """One step, timed by its parts."""
        config, watch = self.config, self.watch
        with watch("step"):
            with watch("augmentation"):
                views = next(self.batches)
                first, second = (
                    view.contiguous(memory_format=torch.channels_last) for view in views
                )
            device, half = first.device.type, config.precision == "bfloat16"
            with watch("network"), bfloat16(device, enabled=half):
                pairs, _ = compare(config, self.networks, first, second)
            with watch("loss"):
                leaf = pairs[0].anchor.detach().requires_grad_()
                cut = dataclasses.replace(pairs[0], anchor=leaf, candidate=leaf)
                loss, _ = self.criterion(cut)
                (gradient,) = torch.autograd.grad(loss, leaf)
            with watch("network back"):
                self.optimiser.zero_grad()
                pairs[0].anchor.backward(gradient)
                self.optimiser.step()


class Lightly:
    """The same step with lightly's transforms and loss, fed by a DataLoader."""

    def __init__(self, config: Config, images: Images, device: str, workers: int) -> None:
        # After vision's modules, which make torchvision importable beside a CPU build of torch.
        from lightly.loss import NTXentLoss
        from lightly.transforms import SimCLRTransform

        torch.manual_seed(0)
        self.config, self.device, self.watch = config, device, Stopwatch(device)
        self.networks = Networks(config).to(device)
        self.loss = NTXentLoss(temperature=0.25)
        self.optimiser = make_optimiser(config, self.networks)
        # lightly's for 32 pixels: no blur at this size in its examples; ours blurs, as the paper's
        transform = SimCLRTransform(input_size=32, min_scale=0.2, cj_strength=0.5)
        loader = DataLoader(
            Pictures(images, transform),
            batch_size=config.batch_size,
            shuffle=True,
            drop_last=True,
            num_workers=workers,
        )
        self.loader = iter(loader)

    def step(self) -> None:
        """One step, and within it the wait for the loader."""
        with self.watch("step"):
            with self.watch("augmentation"):
                views, _ = next(self.loader)
                first, second = (
                    view.to(self.device).contiguous(memory_format=torch.channels_last)
                    for view in views
                )
            with bfloat16(self.device, enabled=self.config.precision == "bfloat16"):
                x, z = (self.networks.head(self.networks.encoder(view)) for view in (first, second))
            loss = self.loss(x.float(), z.float())
            self.optimiser.zero_grad()
            loss.backward()
            self.optimiser.step()


def loss_seconds(name: str, size: int, device: str) -> float:
    """Seconds from two views' embeddings, (size, 128) each, to their gradients."""
    objectives = {
        "SimCLR": Objective(term(info_nce, temperature=0.25)),
        "MMCL INV, both views": Objective(term(max_margin, gamma=0.5)),
        "MMCL INV, first view": Objective(term(max_margin, gamma=0.5)),
        "MMCL PGD, both views": Objective(term(max_margin, gamma=0.5, solver="projected_gradient")),
    }
    criterion, watch = Criterion(objectives[name], 128, check_every=10**9), Stopwatch(device)
    generator = torch.Generator().manual_seed(0)
    for step in range(4):
        views = [
            torch.randn(size, 128, generator=generator).to(device).requires_grad_()
            for _ in range(2)
        ]
        with watch("loss"):
            if name == "SimCLR":
                pairs = two_views(views[0], views[1])
            elif name.endswith("first view"):
                pairs = query_key(views[1], views[0])
            else:
                pairs = two_views(views[0], views[1], anchors="second")
            loss, _ = criterion(pairs, step=step + 1)
            loss.backward()
    return watch.median("loss")


def product_rate(precision: str, device: str) -> float:
    """TFLOP/s of the product of two square matrices of side 2048, the best of five.

    In float32 where the device multiplies no bfloat16, as the network's products are there.
    """
    half = precision == "bfloat16" and native_bfloat16(device)
    dtype = torch.bfloat16 if half else torch.float32
    one, other = (torch.ones(2048, 2048, dtype=dtype, device=device) for _ in range(2))
    watch = Stopwatch(device)
    for _ in range(5):
        with watch("product"):
            one @ other
    return 2 * 2048**3 / min(watch.seconds["product"]) / 1e12


def report_step(ours: Ours, title: str) -> float:
    """Print the parts of our step; returns its seconds."""
    watch, total = ours.watch, ours.watch.median("step")
    network = watch.median("network") + watch.median("network back")
    print(f"{title}: {total:.3f} s a step")
    print(f"  network, both passes and optimiser   {network:8.4f} s  {network / total:6.1%}")
    for name in ("augmentation", "loss"):
        print(f"  {name:36s} {watch.median(name):8.4f} s  {watch.median(name) / total:6.1%}")
    print(f"  everything that is not the network   {total - network:8.4f} s", end="")
    print(f"  {1 - network / total:6.1%} (target: under 25%)")
    return total


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-root", type=Path)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--workers", type=int, default=2, help="of the DataLoader beside ours")
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--precision", choices=("bfloat16", "float32"), default="bfloat16")
    parser.add_argument("--small", action="store_true", help="the tier's ResNet-8, not ResNet-18")
    parser.add_argument("--losses", type=int, nargs="*", default=[128, 256, 512])
    parser.add_argument("--peak", type=float, default=990.0, help="TFLOP/s of the GPU, dense bf16")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    images = load("CIFAR10", data_root(options.data_root), "train")
    assert isinstance(images, Images)
    config = Config(batch_size=options.batch, precision=options.precision)
    if options.small:
        config = dataclasses.replace(config, backbone="resnet8", stem="strided")
    where = torch.cuda.get_device_name() if device == "cuda" else f"{options.threads} CPU threads"
    network = "ResNet-8, strided stem" if options.small else "ResNet-18, CIFAR stem"
    print(f"{network}, batch {options.batch}, {options.precision}, {where}\n")

    ours = Ours(config, images, device, options.steps)
    theirs = None if options.small else Lightly(config, images, device, options.workers)
    for _ in range(options.steps):
        ours.step()
        if theirs is not None:
            theirs.step()
    total = report_step(ours, "ours")
    if theirs is not None:
        beside = theirs.watch.median("step")
        print(f"lightly's transforms and loss, {options.workers} loader processes: {beside:.3f} s")
        print(f"  ours / lightly's: {total / beside:.2f}\n")

    with FlopCounterMode(display=False) as counter, torch.autocast(device, torch.bfloat16):
        ours.networks.encoder(torch.zeros(1, 3, 32, 32, device=device)).sum().backward()
    flops = counter.get_total_flops() * 2 * options.batch
    print(f"arithmetic of a step: {flops / 1e12:.2f} TFLOP, {flops / 1e12 / total:.2f} TFLOP/s")
    peak = options.peak if device == "cuda" else product_rate(options.precision, device)
    floor = flops / 1e12 / peak
    print(f"  at the peak, {peak:.2f} TFLOP/s: {floor:.4f} s, {floor / total:.1%} of the step")
    if options.precision == "bfloat16" and not native_bfloat16(device):
        views = torch.zeros(2 * options.batch, 3, 32, 32).to(memory_format=torch.channels_last)
        contexts = {"ours": bfloat16, "torch's": partial(torch.autocast, dtype=torch.bfloat16)}
        for name, context in contexts.items():
            with ours.watch(name):
                with context(device):
                    features = ours.networks.encoder(views)
                features.float().sum().backward()
        ratio = ours.watch.median("ours") / ours.watch.median("torch's")
        print(f"  both passes of the encoder: {ratio:.2f} of torch's own bfloat16")
    if device == "cuda":
        compiled = Ours(dataclasses.replace(config, compile=True), images, device, options.steps)
        for _ in range(options.steps):
            compiled.step()
        print(f"  compiled: {report_step(compiled, 'compiled') / total:.2f} of the plain step")

    names = ("SimCLR", "MMCL INV, both views", "MMCL INV, first view", "MMCL PGD, both views")
    print("\nloss alone, seconds, and what it adds to the step in place of SimCLR's")
    for size in options.losses:
        seconds = {name: loss_seconds(name, size, device) for name in names}
        for name, value in seconds.items():
            added = (value - seconds["SimCLR"]) / (total * size / options.batch)
            print(f"  batch {size:5d}  {name:24s} {value:8.4f} s  {added:+7.1%}")


if __name__ == "__main__":
    main()
