"""``./reproduce.sh evaluate``: a trained model's scores, printed and written where one says."""

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table as Grid

from shared.command.domains import domain_of
from shared.command.places import Places
from shared.errors import UserError
from shared.experiment.domain import Asked
from shared.experiment.runs import write_atomically

# Options that some domains have.
FURTHER = ("backbone", "stem", "prefix", "size", "statistics", "skip_damaged", "split")


def evaluate(name: str, model: Path, options: argparse.Namespace, places: Places) -> int:
    """Score a model by protocols of a domain, print the numbers, and write them with ``--out``.

    Raises:
        UserError: a domain that scores no models, an option that it does not have, a file in the
            folder of results, or whatever the domain cannot score.
    """
    domain = domain_of(name)
    if domain.score is None:
        raise UserError(f"{name} scores no models of others; vision, text, graph and video do")
    given = {each: getattr(options, each) for each in FURTHER}
    given = {each: str(value) for each, value in given.items() if value is not None}
    if stray := sorted(given.keys() - set(domain.scored_by)):
        option = stray[0].replace("_", "-")
        raise UserError(f"{name} has no --{option} in evaluate; leave it out")
    out: Path | None = options.out
    if out is not None and out.resolve().is_relative_to(places.results.resolve()):
        raise UserError(f"--out {out}: results are of the tables' runs alone; write it elsewhere")
    if not model.exists():
        raise UserError(f"{model}: there is no such file or folder; give a trained model")
    console = Console()

    def say(line: str) -> None:
        console.print(line, soft_wrap=True, highlight=False, markup=False)

    try:
        scores = domain.score(
            Asked(
                model=model,
                data=options.data,
                protocols=options.protocol,
                data_root=places.data,
                seed=options.seed,
                options=given,
                say=say,
            )
        )
    except (ValueError, FloatingPointError) as error:  # of data and networks that are the user's
        on = f" on {options.data}" if options.data else ""
        raise UserError(f"{model}{on}: {error}") from error
    console.print(_grid({each: found["metrics"] for each, found in scores.protocols.items()}))
    if out is not None:
        content = {"domain": name, "seed": options.seed, **scores.facts}
        content["protocols"] = scores.protocols
        out.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(out, json.dumps(content, indent=2) + "\n")
        say(f"written to {out}")
    return 0


def _grid(scores: Mapping[str, Mapping[str, Any]]) -> Grid:
    """A line for each number of each protocol."""
    grid = Grid(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for column in ("protocol", "metric", "value"):
        grid.add_column(column, justify="right" if column == "value" else "left")
    for protocol, metrics in scores.items():
        for metric, value in metrics.items():
            if isinstance(value, int | float):
                grid.add_row(protocol, metric, f"{value:.2f}")
    return grid
