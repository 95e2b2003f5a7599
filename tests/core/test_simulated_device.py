"""Every domain on a simulated GPU: nothing on two devices, nothing without a deterministic form."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from shared.command.cells import domain_of
from shared.experiment.run import Run
from tests.stages import agreement
from tests.stages.simulated_device import SimulatedDevice

GPU = torch.device("cuda")
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


@pytest.mark.parametrize(
    ("domain", "family"),
    [
        (domain, family)
        for domain in sorted(agreement.STEPS)
        for family in agreement.FAMILIES
        # A loss is the same in every domain; what is not is how its steps are captured.
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
        assert not NOT_DETERMINISTIC & set(device.operators), kind
        assert sum(device.operators.values()) > 50


# Text and video take minutes here: every operator is looked at.
RUNS = {"vision": ("margins", "table-2"), "graph": ("mmcl", "table-4"), "rl": ("lmcl", "table-5")}


@pytest.mark.slow
@pytest.mark.parametrize("domain", RUNS)
@pytest.mark.filterwarnings("ignore:frames are drawn by the CPU")  # beside the simulated GPU
def test_loading_training_and_evaluation_stay_on_their_device(domain: str, tmp_path: Path) -> None:
    paper, name = RUNS[domain]
    (table,) = (each for each in domain_of(domain).tables[paper] if each.name == name)
    config: Any = table.cells("smoke")[-1].config
    with SimulatedDevice() as device, Run(tmp_path, config, tier="smoke") as run:
        domain_of(domain).measure(config, run)
    assert sum(device.operators.values()) > 50


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
def test_synchronisation_is_seen_and_refused_in_a_graph(fault: Callable[[Tensor], Tensor]) -> None:
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
            with pytest.raises(RuntimeError, match="mul before"):
                x * 2
            aside.wait_stream(main)
            y = x * 2
        with pytest.raises(RuntimeError, match="add before"):
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
