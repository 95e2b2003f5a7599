"""1, 2 and 4 processes give the loss and the gradients of one process."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor

from shared import (
    Pairs,
    context_window,
    cosine,
    debiased_nce,
    hard_nce,
    info_nce,
    local_global,
    max_margin,
    query_key,
    two_views,
)
from shared.distributed import gather, initialise, rank, rank_seed, world_size

GLOBAL, INPUTS, DIM = 8, 5, 4  # instances of the global batch, inputs and outputs of the encoder
NODES = 3  # of each graph
LOSSES: dict[str, tuple[Callable[..., Tensor], dict[str, Any]]] = {
    "info_nce": (info_nce, {"temperature": 0.3}),
    "graphcl": (info_nce, {"temperature": 0.3, "positive_in_denominator": False}),
    "debiased_nce": (debiased_nce, {"temperature": 0.3, "tau_plus": 0.1}),
    "hard_nce": (hard_nce, {"temperature": 0.3, "tau_plus": 0.1, "beta": 1.0}),
    "max_margin": (max_margin, {"gamma": 2.0}),
    "projected gradient": (max_margin, {"gamma": 2.0, "solver": "projected_gradient"}),
}
BANK = torch.randn(3, DIM, generator=torch.Generator().manual_seed(9), dtype=torch.float64)


def _context_window(first: Tensor, second: Tensor, document: Tensor, collect: Any) -> Pairs:
    return context_window(first, second, 1, document=document, gather=collect)


def _local_global(first: Tensor, second: Tensor, document: Tensor, collect: Any) -> Pairs:
    """Every graph has nodes made from the first views of itself and its neighbours."""
    owner = torch.arange(len(first)).repeat(NODES)
    node = torch.cat([first * (1 + k) + k for k in range(NODES)])
    return local_global(node, second, owner, gather=collect)


BUILDERS: dict[str, Callable[[Tensor, Tensor, Tensor, Any], Pairs]] = {
    "two_views": lambda a, b, _, collect: two_views(a, b, gather=collect),
    "second view": lambda a, b, _, collect: two_views(a, b, anchors="second", gather=collect),
    "query_key": lambda a, b, _, collect: query_key(a, b, gather=collect),
    "query_key, bank": lambda a, b, _, collect: query_key(a, b, BANK, gather=collect),
    "context_window": _context_window,
    "local_global": _local_global,
}


def batch(world: int) -> tuple[Tensor, Tensor, Tensor]:
    """Inputs of both views, (2, G, inputs), the encoder, and a document of each sentence.

    Windows do not reach over processes: a change of process is a change of document.
    """
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(2, GLOBAL, INPUTS, generator=generator, dtype=torch.float64)
    encoder = torch.randn(INPUTS, DIM, generator=generator, dtype=torch.float64)
    place = torch.arange(GLOBAL)
    return inputs, encoder, place // (GLOBAL // world) * 10 + (place >= 2)


def results(inputs: Tensor, encoder: Tensor, document: Tensor, collect: Any) -> dict[str, Any]:
    """Per builder and loss: the mean loss, and its gradients for the encoder and the embeddings."""
    found = {}
    for builder, build in BUILDERS.items():
        for name, (loss, numbers) in LOSSES.items():
            weight = encoder.clone().requires_grad_()
            views = inputs @ weight
            views.retain_grad()
            pairs = build(views[0], views[1], document, collect)
            value = loss(pairs, cosine(pairs.anchor, pairs.candidate), **numbers).mean()
            value.backward()
            found[f"{builder}, {name}"] = (value.detach(), weight.grad, views.grad)
    return found


def work(place: int, world: int, folder: str) -> None:
    """One process: its slice of the batch, its negatives from all."""
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/rendezvous-{world}", rank=place, world_size=world
    )
    assert (rank(), world_size(), rank_seed(7)) == (place, world, 7 + 1_000_003 * place)
    inputs, encoder, document = batch(world)
    size = GLOBAL // world
    own = slice(place * size, (place + 1) * size)
    found = results(inputs[:, own], encoder, document[own], gather)

    # What the gradient of a gathered row is: every process's share, added up.
    rows = torch.full((2, 1), float(place), requires_grad=True)
    together = gather(rows)
    expected = [float(other) for other in range(world) for _ in range(2)]
    assert together.flatten().tolist() == expected
    (together * (place + 1)).sum().backward()
    assert rows.grad.flatten().tolist() == [world * (world + 1) / 2] * 2

    torch.save(found, Path(folder) / f"{world}-{place}.pt")
    dist.barrier()
    dist.destroy_process_group()


@pytest.mark.parametrize("world", [1, 2, 4])
def test_processes_together_give_what_one_gives(
    world: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    mp.spawn(work, (world, str(tmp_path)), nprocs=world)
    found = [torch.load(tmp_path / f"{world}-{place}.pt") for place in range(world)]
    expected = results(*batch(world), None)
    assert len(expected) == len(BUILDERS) * len(LOSSES)
    for name, (value, by_encoder, by_views) in expected.items():
        values, encoders, views = zip(*(result[name] for result in found), strict=True)
        # As DistributedDataParallel has it: parameter gradients averaged over processes. What a
        # process holds for its own rows is `world` times their share in the global mean.
        for got, want in (
            (torch.stack(values).mean(), value),
            (torch.stack(encoders).mean(0), by_encoder),
            (torch.cat(views, dim=1) / world, by_views),
        ):
            torch.testing.assert_close(
                got,
                want,
                rtol=1e-9,
                atol=1e-10 * max(1.0, float(want.abs().max())),
                msg=lambda text, name=name: f"{name}: {text}",
            )
        assert float(by_encoder.abs().max()) > 1e-3


def test_one_process_without_a_group(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANK", raising=False)
    initialise()
    assert not dist.is_initialized()
    assert (rank(), world_size(), rank_seed(7)) == (0, 1, 7)
    rows = torch.randn(3, 2)
    assert gather(rows) is rows


def test_gathering_on_one_process_changes_nothing() -> None:
    inputs, encoder, document = batch(1)
    plain = results(inputs, encoder, document, None)
    for name, result in results(inputs, encoder, document, gather).items():
        torch.testing.assert_close(result, plain[name], rtol=1e-12, atol=1e-12)
