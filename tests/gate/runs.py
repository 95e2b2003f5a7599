"""Ten fixed cells, and what runs leave: made in one checkout, taken up in a later one.

``python -m tests.gate.runs make FOLDER DOMAIN`` runs two cells of the smoke tier, stops a third run
in its middle and exports a model, below ``FOLDER``. The same with ``take-up`` in a later checkout
runs the cells again, reads the finished run, ends the stopped one and loads the model. Both print
the same lines if nothing has changed: ``invariants.py`` beside this compares them. Each checkout
runs its own copy of this file, so that only the arguments and the lines have to stay.
"""

import argparse
import importlib
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from shared.command.cells import every_table, imported
from shared.experiment.records import read_record
from tests.stages.training import finish, stop

# By domain, tables and rows: losses, penalties, L and teachers are among them.
CELLS: dict[str, tuple[tuple[str, str], tuple[str, str]]] = {
    "graph": (("graph/mmcl/table-4", "CLLR, l2,1"), ("graph/mmcl/table-4", "MMCL PGD, first view")),
    "rl": (("rl/cllr/table-4", "CLLR(CURL+l21-norm)"), ("rl/lmcl/table-5", "LMCL(HCL+DP)")),
    "text": (
        ("text/cllr/table-2-small", "CLLR(DCL+nuclear-norm)"),
        ("text/lmcl/table-4-small", "LMCL(QT+DP)"),
    ),
    "video": (("video/mmcl/table-5-small", "MoCo-v2"), ("video/mmcl/table-5-small", "margins")),
    "vision": (
        ("vision/margins/table-2-cifar10", "MoCo + margins"),
        ("vision/margins/table-2-cifar10", "CLLR, l2,1"),
    ),
}


def numbers(metrics: Mapping[str, Any]) -> str:
    """All metrics in full, without details, which include times."""
    return " ".join(
        f"{name}={value!r}" for name, value in sorted(metrics.items()) if name != "details"
    )


def losses_of(run: Path) -> list[float]:
    """All losses that a run has logged."""
    lines = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    return [value for line in lines for name, value in sorted(line.items()) if "loss" in name]


def loaded(domain: str, folder: Path) -> str:
    """What the exported model makes of fixed inputs: the sum and the sum of squares."""
    export = importlib.import_module(f"{domain}.export")
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        if domain == "text":
            output = torch.from_numpy(export.load(folder)(["A list.", "Each of the files."]))
        elif domain == "rl":
            policy = export.load(folder)
            output = policy(torch.randint(256, (2, 9, 32, 32), generator=generator).to(torch.uint8))
        elif domain == "graph":
            edges = torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]])
            arguments = (torch.ones(3, 1, dtype=torch.float64), edges, torch.zeros(3).long(), 1)
            output = export.load_encoder(folder).double().eval()(*arguments)
        else:
            shape = (2, 3, 8, 32, 32) if domain == "video" else (2, 3, 8, 8)
            output = export.load_encoder(folder).eval()(torch.randn(shape, generator=generator))
    values = torch.as_tensor(output).double()
    return f"{values.sum().item():.6g} {values.square().sum().item():.6g}"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("action", choices=("make", "take-up"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("domain", choices=CELLS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    home = options.folder / options.domain
    domain, first = imported(options.domain), options.action == "make"
    tables = {table.address: table for table in every_table(options.domain)}
    data = {"data_root": options.folder / "data"}
    for place, (table, row) in enumerate(CELLS[options.domain]):
        config = tables[table].cells("smoke", row=row)[0].config
        name = f"{table}, {row}"
        run = home / ("made" if first else "again") / str(place)
        metrics = finish(run, config, domain.measure, **data)
        # Few test samples hide what differs in the weights: the losses of training do not.
        print(f"{name} | run | {numbers(metrics)} loss={losses_of(run)}")
        if place == 1:
            continue
        stopped, exported = home / "stopped", home / "exported"
        if first:  # what the run in one go has is what a stopped one has to end with
            stop(stopped, config, domain.measure, **data)
            ended = json.loads((run / "result.json").read_text())["metrics"]
            assert domain.export is not None
            domain.export(run, exported)
        else:
            ended = finish(stopped, config, domain.measure, **data)
        print(f"{name} | stopped and ended | {numbers(ended)}")
        record = read_record(home / "made" / "0", name)
        assert record is not None
        print(f"{name} | read | {numbers(record.result['metrics'])}")
        print(f"{name} | exported model | {loaded(options.domain, exported)}")


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
    sys.stdout.flush()
    os._exit(0)  # seen once: with all lines printed, a library crashed on the interpreter's way out
