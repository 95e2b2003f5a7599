"""The training loops that are timed train in each domain, on small networks."""

import dataclasses
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("domain", ["vision", "text", "graph", "video"])
def test_a_loop_is_timed_alone_and_beside_others(
    domain: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    for name in ("losses", "peers", "steps"):  # of that folder, and gone again afterwards
        monkeypatch.setitem(sys.modules, name, None)
        monkeypatch.delitem(sys.modules, name)
    steps, peers = import_module("steps"), import_module("peers")
    monkeypatch.setattr(steps, "WARM", 1)
    monkeypatch.setattr(steps, "TIMED", 1)
    monkeypatch.setattr(peers, "TURNS", 2)
    config: Any = import_module(f"{domain}.config").Config().reduced()
    config = dataclasses.replace(config, epochs=10, batch_size=8, precision="float32")
    if domain == "graph":
        config = dataclasses.replace(config, dataset="MUTAG")
        loop, parts = steps.graph_loop(config, 16), ("encoder", "head")
    else:
        loop = getattr(steps, f"{domain}_loop")(config)
        parts = ("model" if domain == "text" else "networks",)
    step = steps.timed("one", config, loop)
    assert step.seconds > 0
    assert step.operations > 1000
    times = peers.beside(config, loop, {"sum": total_of_weights}, *parts)
    assert [len(taken) for taken in times.values()] == [2, 2]


def total_of_weights(*modules: Any) -> Any:
    """A plain loss of all weights."""
    return sum(weight.sum() for module in modules for weight in module.parameters())
