from shared.tables import Claim, Column, Published, Row, Table, Value
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
        unit="%",
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
CLAIM = Claim("better is better", "better", "plain", ("left", "right"), 1.0)
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
            ),
        ),
    ),
    "slow": (table("slow", (Row("plain", {"pause": 0.2, "steps": 30}, "plain"), BETTER)),),
}
