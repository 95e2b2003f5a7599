"""One table of arrows, as data, and the question that it asks."""

from arrows.config import Config
from shared import Objective, margin_nce, term
from shared.experiment.tables import Claim, Column, Comparison, Row, Table

MARGIN = Objective(term(margin_nce, temperature=0.5, angular=0.1))
QUESTION = Claim(
    id="arrows-margin",
    paper="",
    sentence="Does a margin help?",
    brief="a margin helps",
    place="",
    source="",
    form="superiority",
    comparisons=(Comparison("angular margin", "InfoNCE", ("noise 0.4",)),),
)

TABLE = Table(
    domain="arrows",
    paper="mine",
    name="table-1",
    title="Arrows",
    section="none: our own",
    metric="accuracy",
    unit="%",
    protocol="nearest-mean-v1",
    config=Config(),
    rows=(Row("InfoNCE"), Row("angular margin", {"objective": MARGIN})),
    columns=(Column("noise 0.4"), Column("noise 0.8", {"noise": 0.8})),
    seeds={"paper": (0, 1, 2), "smoke": (0,)},
    claims=(QUESTION,),
)
TABLES = {"mine": (TABLE,)}
