"""Every domain on a simulated GPU: nothing on two devices, no waits but those that are listed."""

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from shared import Objective, term
from shared.capture import WARM_UP
from shared.command.cells import domain_of
from shared.experiment.run import Run
from tests.stages import agreement
from tests.stages.simulated_device import SimulatedDevice
from vision.config import Config as VisionConfig
from vision.images import Images
from vision.methods.swav import swapped_prediction
from vision.train import pretrain

GPU = torch.device("cuda")
# Functions that may wait, each with the reason.
ALLOWED: dict[str, str] = {
    "graph/evaluation.py embed": "features go to the SVM on the host",
    "graph/train.py pretrain": "networks are moved once",
    "graph/train.py kept_features": "features are moved once",
    "rl/agent.py Agent.__init__": "networks are moved once",
    "rl/agent.py Agent.check_finite": "looked at every so many updates",
    "rl/agent.py Contrast.__init__": "networks are moved once",
    "rl/replay.py Replay._append": "a frame is brought to the device",
    "rl/replay.py Replay.add": "an action and a reward are brought to the device",
    "rl/replay.py Replay.state_dict": "the replay is saved",
    "rl/train.py train_with": "networks and observations are moved",
    "rl/train.py train_with.<locals>.act": "the environment needs the action",
    "rl/train.py save_weights": "weights are written to disk",
    "shared/checks.py check_cosines": "looked at in the first step",
    "shared/checks.py check_negatives": "looked at in the first step",
    "shared/late.py Late.read": "looked at before a log",
    "shared/monitor.py _check_finite": "before max_margin's factorisation",
    "shared/experiment/run.py Means.take": "means are logged",
    "shared/experiment/run.py Run._warn_if_diverged": "read from the log",
    "shared/experiment/states.py not_finite": "states are looked at before they are saved",
    "shared/spectrum.py effective_rank": "the evaluated features, once",
    "vision/images.py Images.to": "the images are moved once",
    "shared/logistic.py check_finite": "features are looked at once",
    "vision/features.py check_labels": "labels are looked at once",
    "vision/features.py embed": "images are looked at once, batches of test images are moved",
    "vision/evaluation.py evaluate": "the encoder is moved once",
    "vision/evaluation.py knn": "the accuracy is read",
    "vision/evaluation.py linear_probe": "labels are moved once, the accuracy is read",
    "vision/methods/swav.py SwAV.full_queue": "SwAV's queue, until it is full",
    "vision/train.py pretrain": "networks are moved once",
}
# What torch's documentation of use_deterministic_algorithms says has no deterministic form on CUDA.
# Left out is cumsum: the suite's are of whole numbers, which the documentation does not mean.
NOT_DETERMINISTIC = set(
    "avg_pool3d_backward _adaptive_avg_pool2d_backward _adaptive_avg_pool3d_backward "
    "adaptive_max_pool2d_backward fractional_max_pool2d_backward fractional_max_pool3d_backward "
    "max_unpool2d max_unpool3d upsample_linear1d_backward upsample_bilinear2d_backward "
    "upsample_bicubic2d_backward upsample_trilinear3d_backward reflection_pad1d_backward "
    "reflection_pad2d_backward reflection_pad3d_backward nll_loss2d_forward _ctc_loss_backward "
    "put_ histc median grid_sampler_2d_backward grid_sampler_3d_backward".split()
)


def waits_of(device: SimulatedDevice) -> set[str]:
    """The functions outside the tests that waited and are not allowed to."""
    found = {where for _, where in device.waits if not where.startswith("tests/")}
    return found - set(ALLOWED)


@pytest.mark.parametrize(
    ("domain", "family"),
    [
        (domain, family)
        for domain in sorted(agreement.STEPS)
        for family in agreement.FAMILIES
        # A loss is the same in every domain; what is not is how its steps wait and are captured.
        if domain == "vision" or family in ("info_nce", "max_margin, closed form")
    ],
)
def test_a_training_step_stays_on_its_device(domain: str, family: str) -> None:
    for kind, step in agreement.STEPS[domain]().items():
        if family != agreement.FAMILIES[0] and not kind.endswith("every loss"):
            continue
        torch.manual_seed(0)
        with SimulatedDevice() as device, agreement.drawn_on_the_cpu():
            step(agreement.OBJECTIVES[family], GPU, torch.float32)
        assert waits_of(device) == set(), kind
        assert not NOT_DETERMINISTIC & set(device.operators), kind
        assert sum(device.operators.values()) > 50


# Text and video take minutes here: every operator is looked at.
RUNS = {
    "vision": ("margins", "table-2"),
    "graph": ("mmcl", "table-4"),
    "rl": ("lmcl", "table-5"),
}


@pytest.mark.slow
@pytest.mark.parametrize("domain", RUNS)
@pytest.mark.filterwarnings("ignore:frames are drawn by the CPU")  # beside the simulated GPU
def test_loading_training_and_evaluation_stay_on_their_device(domain: str, tmp_path: Path) -> None:
    paper, name = RUNS[domain]
    (table,) = (each for each in domain_of(domain).tables[paper] if each.name == name)
    config: Any = table.cells("smoke")[-1].config
    with SimulatedDevice() as device, Run(tmp_path, config, tier="smoke") as run:
        domain_of(domain).measure(config, run)
    assert waits_of(device) == set()


@pytest.mark.slow
def test_a_step_of_simclr_on_cifar_is_so_many_operators(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of ResNet-18 on two views, augmentation and optimiser included; first without a graph."""
    monkeypatch.setenv("SUITE_GRAPHS", "1")
    config = VisionConfig(batch_size=2, image_size=16, warmup_epochs=0.0, epochs=1)
    steps = WARM_UP + 4  # those that warm up, one that captures, those that replay
    pixels = torch.randint(0, 256, (steps * 2, 3, 16, 16), dtype=torch.uint8)
    images = Images(pixels, torch.zeros(steps * 2, dtype=torch.int64))
    counts: list[int] = []

    def watch(*_: Any) -> None:
        counts.append(device.operators.total())

    with (
        SimulatedDevice() as device,
        Run(tmp_path, config, tier="smoke", progress=watch) as run,
    ):
        pretrain(config, images, run, mean=(0.5,) * 3, std=(0.5,) * 3)
    each = [after - before for before, after in itertools.pairwise(counts)]
    assert len(each) == WARM_UP + 3
    assert all(500 < count <= 850 for count in each[: WARM_UP - 1]), each
    assert all(100 < count <= 260 for count in each[WARM_UP:]), each
    assert device.operators["graph"] == 4


SMALL = {"backbone": "resnet8", "stem": "strided", "head_hidden": 64, "head_output": 32}
WAITLESS: dict[str, dict[str, Any]] = {
    "SwAV, its queue full": {
        "method": "swav",
        "prototypes": 16,
        "small_crops": 2,
        "small_size": 16,
        "queue": 8,
        "objective": Objective(term(swapped_prediction)),
    },
    "CMC": {"method": "cmc", "queue": 16, "statistics": "none", "image_size": 32},
    "MoCHI": {"method": "moco_v2", "queue": 32, "mixed": (16, 8, 4)},
}


@pytest.mark.parametrize("name", WAITLESS)
def test_a_training_of_methods_with_a_memory_does_not_wait(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the third step on, of ten in two epochs, up to a step before the end of an epoch."""
    monkeypatch.setenv("SUITE_GRAPHS", "0")  # the first replay of a graph is waited for
    config = VisionConfig(batch_size=8, warmup_epochs=0.0, epochs=2, **SMALL, **WAITLESS[name])
    pixels = torch.randint(0, 256, (40, 3, 32, 32), dtype=torch.uint8)
    images = Images(pixels, torch.zeros(40, dtype=torch.int64))
    waits: list[set[tuple[str, str]]] = []

    def watch(*_: Any) -> None:
        waits.append(set(device.waits))
        device.waits.clear()

    with (
        SimulatedDevice() as device,
        Run(tmp_path, config, tier="smoke", progress=watch) as run,
    ):
        pretrain(config, images, run, mean=(0.5,) * 3, std=(0.5,) * 3)
    assert len(waits) == 10
    assert waits[2:4] == [set()] * 2
    assert waits[6:9] == [set()] * 3


def made_on_the_host(x: Tensor) -> Tensor:
    return x + torch.ones(4)


def index_on_the_host(x: Tensor) -> Tensor:
    return x[torch.arange(2)]


def generator_of_the_host(x: Tensor) -> Tensor:
    return torch.randn(4, generator=torch.Generator(), device=x.device)


def constant_brought_along(x: Tensor) -> Tensor:
    return x * torch.tensor([1.0, 2.0, 3.0, 4.0], device=x.device)


def number_read(x: Tensor) -> Tensor:
    return x / x.sum().item()


@pytest.mark.parametrize("fault", [made_on_the_host, generator_of_the_host])
def test_tensors_on_several_devices_are_refused(fault: Callable[[Tensor], Tensor]) -> None:
    with SimulatedDevice(), pytest.raises(RuntimeError, match=f"device.* {fault.__name__}"):
        fault(torch.zeros(4).to("cuda"))


@pytest.mark.parametrize("fault", [index_on_the_host, constant_brought_along, number_read])
def test_synchronisation_is_seen_and_refused_in_a_graph(
    fault: Callable[[Tensor], Tensor],
) -> None:
    with SimulatedDevice() as device:
        x = torch.ones(4).to("cuda")
        device.waits.clear()
        fault(x)
        (((_, where), count),) = device.waits.items()
        assert where.endswith(fault.__name__)
        assert count == 1
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            with pytest.raises(RuntimeError, match="while a CUDA graph is captured"):
                fault(x)


def test_reading_before_another_stream_is_done_is_refused() -> None:
    with SimulatedDevice():
        aside, main = torch.cuda.Stream(), torch.cuda.current_stream()
        x = torch.ones(2).to("cuda") + 1
        with torch.cuda.stream(aside):
            with pytest.raises(RuntimeError, match="mul before another stream is done"):
                x * 2
            aside.wait_stream(main)
            y = x * 2
        with pytest.raises(RuntimeError, match="add before another stream is done"):
            y + 1
        main.wait_stream(aside)
        assert (y + 1).tolist() == [5, 5]


def test_a_copy_that_nothing_waits_for_is_read_once_it_has_arrived() -> None:
    with SimulatedDevice() as device:
        x = torch.ones(2).to("cuda")
        device.waits.clear()
        copy, event = x.to("cpu", non_blocking=True), torch.cuda.Event()
        event.record()
        for read in (copy.tolist, copy.numpy, lambda: float(copy[0])):
            with pytest.raises(RuntimeError, match="of a copy that may not have arrived"):
                read()
        x.add_(1)  # the device has other work
        event.synchronize()
        assert copy.tolist() == [1, 1]
        assert not device.waits
        event = torch.cuda.Event()
        event.record()
        event.synchronize()
        assert sum(device.waits.values()) == 1


def test_capturing_changes_nothing_and_a_replay_repeats_it_with_the_numbers_of_then() -> None:
    rate = 0.5
    with SimulatedDevice() as device:
        x, given = torch.ones(2).to("cuda"), torch.ones(2).to("cuda")
        graph = torch.cuda.CUDAGraph()
        state = torch.get_rng_state()
        with torch.cuda.graph(graph):
            x.add_(given, alpha=rate)
            noise = torch.rand_like(x)
        assert torch.equal(torch.get_rng_state(), state)
        assert x.tolist() == [1, 1]
        assert noise.isnan().all()  # nobody may read it before a replay
        rate = 0.0  # is not seen
        given.mul_(4)
        before = device.operators.total()
        graph.replay()
        assert device.operators.total() - before == device.operators["graph"] == 1
        assert x.tolist() == [3, 3]
        first = noise.clone()
        graph.replay()
        assert x.tolist() == [5, 5]
        assert not torch.equal(noise, first)


def test_a_captured_graph_takes_nothing_from_the_host() -> None:
    with SimulatedDevice():
        x, given = torch.ones(2).to("cuda"), torch.ones(2).pin_memory()
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            with pytest.raises(RuntimeError, match="between host and device while a CUDA graph"):
                x.copy_(given, non_blocking=True)
            with pytest.raises(RuntimeError, match="between host and device while a CUDA graph"):
                given.to("cuda", non_blocking=True)


def test_values_are_those_of_the_cpu() -> None:
    with SimulatedDevice():
        x = torch.arange(6.0).view(2, 3).to("cuda").requires_grad_()
        (x.softmax(1).log().sum() * 2).backward()
        assert x.device == x.grad.device == GPU or x.device.type == "cuda"
        found = x.grad.cpu()
    y = torch.arange(6.0).view(2, 3).requires_grad_()
    (y.softmax(1).log().sum() * 2).backward()
    assert torch.equal(found, y.grad)
