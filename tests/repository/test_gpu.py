"""On a real GPU alone: what the simulated one cannot show. ``./reproduce.sh test --gpu`` runs it.

The cheapest comes first; whole runs and the papers' batches come last.
"""

import os
import socket
import threading
import warnings
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import pytest
import torch
import torch.multiprocessing as mp
from torch import Tensor, nn

from shared import Criterion, Objective, info_nce, query_key, term
from shared.capture import WARM_UP, Captured, CaptureFailed
from shared.command.cells import tables_of_paper
from shared.distributed import destroy, gather, initialise, local_slice, rank
from shared.experiment.run import Run
from shared.experiment.run_folders import Interrupted
from shared.experiment.states import not_finite, read_state
from tests.core.test_capture import VISION, small_vision, train_vision
from tests.experiment.test_watch import assert_alike, domain_and_config
from vision.methods import networks_of
from vision.methods.base import Step
from vision.train import make_optimiser, make_step

pytestmark = pytest.mark.cuda
GPU = torch.device("cuda")
ROOT = Path(__file__).resolve().parents[2]
DOMAINS = ("graph", "vision", "text", "video", "rl")
NCE = Objective(term(info_nce, temperature=0.5))


@pytest.fixture(autouse=True)
def graphs_are_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUITE_GRAPHS", "1")


def test_this_build_of_torch_has_kernels_for_this_gpu() -> None:
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        x = torch.eye(64, device=GPU, dtype=dtype)
        assert torch.equal(x @ x, x)
    images = torch.ones(2, 3, 8, 8, device=GPU)
    assert torch.nn.functional.conv2d(images, torch.ones(4, 3, 3, 3, device=GPU)).mean() == 27


def test_a_run_goes_on_with_its_own_generator_alone() -> None:
    from shared.experiment.randomness import random_state, restore_random_state

    state = random_state()
    assert len(state["cuda"]) == 1
    first = torch.rand(4, device=GPU)
    restore_random_state({**state, "cuda": state["cuda"] * 8})  # as older checkpoints have it
    assert torch.equal(torch.rand(4, device=GPU), first)


# Not a number


def test_a_loss_that_is_not_finite_is_told_at_the_next_call() -> None:
    criterion = Criterion(NCE, 4, check_every=2).to(GPU)
    good, bad = torch.eye(4, device=GPU), torch.full((4, 4), torch.nan, device=GPU)
    for step in range(4):
        criterion(query_key(good, good + 1), step=step)
    criterion(query_key(good, bad), step=4)
    with pytest.raises(FloatingPointError, match="embeddings are NaN or infinite at step 4"):
        criterion(query_key(good, good), step=5)


@pytest.mark.parametrize("bad", [150, 299])
def test_a_training_stops_before_it_writes_nan(tmp_path: Path, bad: int) -> None:
    config = domain_and_config("graph")[1]
    layer = nn.Linear(2, 1).to(GPU)
    with Run(tmp_path, config) as run:
        run.track(layer=layer)

        def loop() -> None:
            for step in run.steps(300, "training", log_every=300, save_every=1e9):
                loss = layer(torch.ones(1, 2, device=GPU)).sum()
                run.means.add({"loss": loss.detach() * (torch.nan if step == bad else 1)})

        with pytest.raises(FloatingPointError, match="loss is NaN or infinite by step"):
            loop()
    assert not (tmp_path / "checkpoint.pt").exists()
    assert not (tmp_path / "log.jsonl").exists()


# Graphs


def fail_to_capture() -> None:
    """The process may not go on with graphs; eager work, such as a last save, still does."""
    function = Captured(lambda x: {"share": x / float(x.sum())}, GPU)
    x = torch.ones(2, device=GPU)
    for _ in range(WARM_UP):
        function(x)
    with pytest.raises(CaptureFailed, match="no CUDA graph"):
        function(x)
    assert (x + 1).tolist() == [2, 2]


def test_a_capture_that_fails_says_why() -> None:
    """In a process of its own, whose generator and memory are of no use to other tests."""
    process = mp.get_context("spawn").Process(target=fail_to_capture)
    process.start()
    process.join()
    assert process.exitcode == 0


def test_a_graph_that_gives_other_numbers_is_refused() -> None:
    """One that forgets what the function changes in place outside of what it was told."""
    hidden = torch.zeros(2, device=GPU)

    def function(x: Tensor) -> dict[str, Tensor]:
        hidden.add_(x)
        return {"sum": hidden.clone()}

    captured, x = Captured(function, GPU), torch.ones(2, device=GPU)
    for _ in range(WARM_UP):
        captured(x)
    with pytest.raises(CaptureFailed, match="its first replay gives other results"):
        captured(x)


@pytest.mark.parametrize("name", VISION)
def test_captured_steps_are_the_eager_ones_as_runs_have_them(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With cuDNN's choice by timing, as :func:`shared.command.worker.set_up_torch` leaves it."""
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)
    steps, changes = VISION[name]
    graphs, trained = train_vision(small_vision(**changes), steps)
    monkeypatch.setenv("SUITE_GRAPHS", "0")
    eager, expected = train_vision(small_vision(**changes), steps)
    for one, other in zip(graphs, eager, strict=True):
        assert one == pytest.approx(other, rel=1e-2, abs=1e-3)
    for found, value in zip(trained, expected, strict=True):
        torch.testing.assert_close(found, value, rtol=1e-2, atol=1e-3)


def test_threads_may_pin_memory_during_a_capture() -> None:
    over = threading.Event()
    failed: list[Exception] = []

    def pin() -> None:
        try:
            while not over.is_set():
                torch.empty(1 << 20).pin_memory().to(GPU, non_blocking=True)
        except Exception as error:
            failed.append(error)

    threads = [threading.Thread(target=pin) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(5):
            layer = nn.Linear(256, 256).to(GPU)
            function = Captured(lambda x, layer=layer: {"y": layer(x).relu().sum()}, GPU)
            for _ in range(WARM_UP + 2):
                function(torch.ones(64, 256, device=GPU))
    finally:
        over.set()
        for thread in threads:
            thread.join()
    assert not failed


def test_no_step_needs_memory_beside_that_of_the_graph() -> None:
    """ResNet-50 at 224 in bfloat16: a graph beside an eager step would take twice as much."""
    config = small_vision(
        backbone="resnet50", stem="imagenet", image_size=224, batch_size=64, precision="bfloat16"
    )
    networks = networks_of(config).to(GPU, memory_format=torch.channels_last).train()
    criterion = Criterion(config.objective, networks.dim, check_every=5).to(GPU)
    optimiser = make_optimiser(config, nn.ModuleList([networks, criterion]))
    train_step = make_step(config, networks, criterion, optimiser)
    views = tuple(torch.randn(64, 3, 224, 224, device=GPU) for _ in range(2))
    peaks = []
    for step in range(12):  # over two boundaries of epochs of five steps
        torch.cuda.reset_peak_memory_stats()
        train_step(views, Step(step))
        torch.cuda.synchronize()
        peaks.append(torch.cuda.max_memory_reserved())  # the graph's pool is a part of it
    eager = max(peaks[1:WARM_UP])
    assert max(peaks) < 1.5 * eager, [f"{peak / 2**30:.1f}" for peak in peaks]


# Several GPUs


def _loss_of_one(place: int, port: int, folder: str) -> None:
    os.environ |= {"RANK": str(place), "LOCAL_RANK": str(place), "WORLD_SIZE": "2"}
    os.environ |= {"MASTER_ADDR": "localhost", "MASTER_PORT": str(port)}
    initialise()
    views, weight = _made(torch.device("cuda", place))
    own = local_slice(len(views[0]))
    loss, _ = Criterion(NCE, 8)(query_key(*(views[:, own] @ weight), gather=gather), step=0)
    loss.backward()
    assert weight.grad is not None
    torch.distributed.all_reduce(weight.grad)
    if rank() == 0:
        torch.save(weight.grad.cpu() / 2, Path(folder) / "gradient.pt")
    destroy()


def _made(device: torch.device) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    views = torch.randn(2, 32, 8, generator=generator, dtype=torch.float64).to(device)
    weight = torch.randn(8, 8, generator=generator, dtype=torch.float64).to(device)
    return views, weight.requires_grad_()


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_two_gpus_give_the_gradient_of_one(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    mp.spawn(_loss_of_one, (port, str(tmp_path)), nprocs=2)
    views, weight = _made(GPU)
    Criterion(NCE, 8)(query_key(*(views @ weight)), step=0)[0].backward()
    assert weight.grad is not None
    found = torch.load(tmp_path / "gradient.pt")
    torch.testing.assert_close(found, weight.grad.cpu(), rtol=1e-12, atol=1e-12)


# Whole runs


def test_frames_are_drawn_by_a_gpu_beside_cuda() -> None:
    from rl.simulator import SOFTWARE, renderer_in_use

    torch.ones(1, device=GPU)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        name = renderer_in_use()
    assert not any(each in name for each in SOFTWARE), name


@pytest.mark.parametrize("domain", DOMAINS)
def test_a_whole_run_ends(domain: str, tmp_path: Path) -> None:
    """Training, store and evaluation; its record says what it ran on, and nothing is NaN."""
    measured, config = domain_and_config(domain)
    with Run(tmp_path / "run", config, data_root=tmp_path, store=tmp_path / "store") as run:
        run.keep_checkpoint = True
        result = run.finish(measured.measure(config, run))
        assert run.environment["graphs"] is True
        assert run.environment["driver"] != "not read"
    assert not_finite(result["metrics"]) is None
    for file in (tmp_path / "run").glob("checkpoint.pt"):
        assert not_finite(read_state(file)["objects"]) is None


@pytest.mark.usefixtures("exact")
@pytest.mark.parametrize("domain", DOMAINS)
def test_a_run_that_is_interrupted_gives_the_same_bits(domain: str, tmp_path: Path) -> None:
    """As ``--deterministic`` has it: Ctrl-C in the middle, and the same command again."""
    measured, config = domain_and_config(domain)
    seen = 0

    def run_in(folder: Path, stop: int | None) -> None:
        nonlocal seen
        seen = 0

        def progress(done: int, total: int, what: str) -> None:
            nonlocal seen
            seen += 1
            run.stopping = seen == stop

        with Run(folder, config, data_root=tmp_path, progress=progress) as run:
            run.finish(measured.measure(config, run))

    run_in(tmp_path / "whole", None)
    steps = seen
    with pytest.raises(Interrupted):
        run_in(tmp_path / "stopped", max(1, steps // 3))
    run_in(tmp_path / "stopped", None)
    assert_alike(tmp_path / "whole", tmp_path / "stopped")


# The papers' batches


STEPS = {
    "SimCLR, ResNet-18, CIFAR-10": "vision/margins/table-2/SimCLR/CIFAR10",
    "MMCL INV, ResNet-50, ImageNet-100": "vision/mmcl/table-2/MMCL_INV/top1",
    "quick-thoughts, GRU 2400": "text/lmcl/table-4-bookcorpus/QT/MR",
    "CURL, an update": "rl/lmcl/table-5/CURL/Swingup",
    "MMCL INV, S3D, UCF-101": "video/mmcl/table-5/MMCL INV, both views/RGB linear",
    "GraphCL, GIN, DD": "graph/mmcl/table-4/GraphCL/DD",
}


@pytest.mark.parametrize("name", STEPS)
def test_a_step_at_the_papers_batch(
    name: str, monkeypatch: pytest.MonkeyPatch, record_property: Callable[[str, object], None]
) -> None:
    """It fits, and its time stands in the summary of ``test --gpu``."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    monkeypatch.setenv("SUITE_GRAPHS", "0")
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)
    steps = import_module("steps")
    domain, paper, table_name, row, column = STEPS[name].split("/")
    (table,) = (
        each
        for each in tables_of_paper(domain, paper)
        if each.name == table_name and "paper" in each.tiers
    )
    config = table.cells("paper", row=row, column=column)[0].config
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    is_rl = domain == "rl"
    step = steps.rl() if is_rl else steps.timed(name, config, steps.loop_of(domain, config))
    assert 0 < step.seconds < 10
    found = {"step": name, "milliseconds": 1e3 * step.seconds, "host": 1e3 * (step.host or 0)}
    found |= {"waits": step.waits, "gigabytes": torch.cuda.max_memory_allocated() / 1e9}
    record_property("step", found)
