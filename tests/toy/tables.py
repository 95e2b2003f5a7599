import dataclasses
from pathlib import Path

from shared.experiment.tables import Claim, Column, Comparison, Published, Row, Table, Value
from toy.train import Config

PUBLISHED = Published(
    source="Toy 2026, Table 1",
    title="Toys",
    columns=("left", "right"),
    rows={"plain": (Value(1.0, 0.1), Value(2.0)), "better": (Value(3.0), None)},
)


def table(paper: str, rows: tuple[Row, ...], claims: tuple[Claim, ...] = ()) -> Table:
    return Table(
        domain="toy",
        paper=paper,
        name="table-1",
        title="Toys",
        section="Table 1",
        metric="accuracy",
        unit="% of variance",
        protocol="toy-v1",
        config=Config(),
        rows=rows,
        columns=(Column("left"), Column("right", {"offset": 1.0})),
        seeds={"paper": (0, 1, 2), "short": (0,), "smoke": (0,)},
        published=PUBLISHED,
        claims=claims,
        short={"steps": 2},
    )


PLAIN = Row("plain", published="plain")
BETTER = Row("better", {"offset": 2.0}, published="better")
CLAIM = Claim(
    id="toy-table-1",
    paper="toy",
    sentence="The better row is better.",
    brief="better is better",
    place="Table 1",
    source="toy.yaml: better is better",
    form="superiority",
    comparisons=(Comparison("better", "plain", ("left", "right")),),
)
# What a paper only plots; the data of one column are nowhere.
FIGURE = dataclasses.replace(
    table("partial", (PLAIN, BETTER)),
    name="figure-3",
    section="Figure 3",
    rows=(Row("curve", in_columns={"right": {"offset": 5.0}}),),
    columns=(
        Column("left"),
        Column("right", {"offset": 1.0}, metric="norm"),
        Column("far", {"kind": "missing"}),
    ),
    seeds={"paper": (0, 1), "short": (0,), "smoke": (0,)},
    published=Published("Toy 2026, Figure 3", "Curves", columns=(), rows={}),
)
# Two columns read from one run, one of its own; the base row is no matter of the seed.
SHARED = dataclasses.replace(
    table("shared", (PLAIN, BETTER)),
    rows=(Row("base", {"batch_size": 8}, seeds=(0,)), Row("plain", published="plain"), BETTER),
    columns=(
        Column("left", metric="accuracy", run="both"),
        Column("norm", metric="norm", run="both"),
        Column("right", {"offset": 1.0}),
    ),
)
# Beside a table of all tiers one that the short tier has no part of.
COSTLY = dataclasses.replace(
    table("costly", (PLAIN, BETTER), (CLAIM,)),
    name="table-2",
    seeds={"paper": (0, 1), "smoke": (0,)},
)
TABLES = {
    "toy": (table("toy", (PLAIN, BETTER), (CLAIM,)),),
    "broken": (
        table(
            "broken",
            (
                PLAIN,
                BETTER,
                Row("made to fail", {"kind": "fails"}),
                Row("diverges", {"kind": "nan"}),
                Row("lacks data", {"kind": "missing"}),
                Row("killed", {"kind": "killed"}),
                Row("leaves", {"kind": "leaves"}),
                Row("too large", {"kind": "full"}),
                Row("too large array", {"kind": "full array"}),
                Row("too large on a device", {"kind": "full device", "batch_size": 512}),
            ),
        ),
    ),
    "slow": (table("slow", (Row("plain", {"pause": 0.2, "steps": 20}, "plain"), BETTER)),),
    "partial": (
        dataclasses.replace(table("partial", (PLAIN, BETTER)), name="table-3"),
        FIGURE,
    ),
    "shared": (SHARED,),
    "costly": (table("costly", (PLAIN, BETTER)), COSTLY),
    "graphs": (table("graphs", (PLAIN, BETTER, Row("cannot be captured", {"kind": "graphs"}))),),
}


def run_of(runs: Path, address: str) -> Path:
    """The folder of the run of a cell, by the cell's address."""
    *tier, _, paper, name, row, column, seed = address.split("/")
    (tier_of,) = tier or ["paper"]
    for table in TABLES[paper]:
        if table.name == name and tier_of in table.tiers:
            seeds = [int(seed.removeprefix("seed-"))]
            return runs / table.cells(tier_of, row=row, column=column, seeds=seeds)[0].folder
    raise ValueError(f"no toy table of {address}")
