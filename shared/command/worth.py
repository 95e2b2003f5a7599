"""What an hour on a GPU is best spent on: bundles of paper-tier cells, as data.

A bundle is what a verdict needs: rows of one table in one column, its floors among them, over
seeds. Its value is counted, not set: the verdicts on the paper's claims that it settles. What it
costs is the plan's to say, and the bundle with the most verdicts for each minute comes first; of
two that are worth the same, the one that stands first here.
"""

from dataclasses import dataclass

from shared.command.choosing import choose_tables
from shared.experiment.tables import Cell, Table


@dataclass(frozen=True)
class Bundle:
    """Cells that are worth something together.

    Args:
        table: address of the table, ``domain/paper/table``.
        column: label of the column.
        rows: labels of the rows.
        seeds: the seeds; a row that has fewer is run with those that it has.
        why: what is learnt from it.
    """

    table: str
    column: str
    rows: tuple[str, ...]
    seeds: tuple[int, ...]
    why: str

    @property
    def name(self) -> str:
        """As it is called in the proof."""
        return f"{self.table} / {self.column}"


BUNDLES: tuple[Bundle, ...] = (
    Bundle(
        "rl/lmcl/table-5",
        "Swingup",
        ("random policy", "SAC on the same crops", "CURL", "LMCL(CURL+DP)", "LMCL(CURL+DP), mean"),
        (0, 1, 2),
        "the only paper-tier task of agents that takes minutes; needs no data",
    ),
    Bundle(
        "rl/lmcl/table-5",
        "Catch",
        ("random policy", "SAC on the same crops", "CURL", "LMCL(CURL+DP)", "LMCL(CURL+DP), mean"),
        (0, 1, 2),
        "a second task, where the printed gain is large; needs no data",
    ),
    Bundle(
        "rl/cllr/table-4",
        "Swingup",
        ("random policy", "CURL", "CLLR(CURL+l21-norm)", "CLLR(CURL+l21-norm), norm over batch"),
        (0, 1, 2),
        "shares CURL with the table above, which is not run twice; needs no data",
    ),
    Bundle(
        "vision/margins/table-2",
        "CIFAR10",
        ("untrained encoder", "SimCLR", "SimCLR + pos.", "MoCo", "MoCo + pos.", "MoCo + margins"),
        (0, 1, 2),
        "the paper's main table at its own 200 epochs; here only shorter runs are on record",
    ),
    Bundle(
        "vision/lmcl/figure-4",
        "CIFAR-10, 256",
        ("SimCLR", "LMCL(SimCLR+DP)", "LMCL(SimCLR+DP), mean"),
        (0,),
        "distance polarization on images at the paper's budget",
    ),
    Bundle(
        "vision/cllr/table-1",
        "cifar10_ep100",
        ("256-dim (w/o R)", "256-dim (w/ l2,1)", "256-dim (w/ l2,1), norm over batch"),
        (0, 1, 2, 3, 4),
        "the low-rank projection on images at the paper's budget",
    ),
    Bundle(
        "vision/mmcl/table-6",
        "cifar100",
        ("linear x.y", "tanh(-gamma x.y + eta)", "RBF exp(-|x-y|^2/(2 sigma^2))"),
        (0,),
        "kernels of max_margin; no other table asks this",
    ),
    Bundle(
        "vision/mmcl/table-8",
        "cifar100",
        ("SimCLR", "MMCL_PGD", "MMCL_INV"),
        (0,),
        "both solvers of max_margin beside SimCLR at the paper's budget",
    ),
    Bundle(
        "video/mmcl/table-5",
        "RGB linear",
        ("8 x 8 thumbnail", "untrained encoder, calibrated", "MoCo-v2", "MMCL INV, both views"),
        (0, 1, 2),
        "the paper's clips and network; one run is read for R@1, too",
    ),
    Bundle(
        "text/lmcl/table-4",
        "MR",
        ("majority class", "tf-idf unigrams", "untrained encoder", "QT", "LMCL(QT+DP)"),
        (0, 1, 2),
        "the paper's encoders and batch; one run is read for all six tasks",
    ),
    Bundle(
        "graph/mmcl/table-4",
        "DD",
        ("largest class", "sizes and labels", "GraphCL", "MMCL INV, both views"),
        (0, 1, 2, 3, 4),
        "a large dataset of graphs, which takes long on a CPU",
    ),
)


def table_of(bundle: Bundle) -> Table:
    """The table of a bundle.

    Raises:
        UserError: there is none of that address with a paper tier.
    """
    domain, paper, name = bundle.table.split("/")
    return next(
        table for table in choose_tables(domain, paper, name, "paper") if table.name == name
    )


def cells_of(bundle: Bundle) -> tuple[Cell, ...]:
    """Its cells, seed by seed, so that what is done first can be compared.

    Raises:
        UserError: a row or column that the table does not have.
    """
    table = table_of(bundle)
    cells = [
        cell
        for row in bundle.rows
        for cell in table.cells("paper", row=row, column=bundle.column)
        if cell.seed in bundle.seeds
    ]
    return tuple(sorted(cells, key=lambda cell: cell.seed))


def verdicts_of(bundle: Bundle) -> int:
    """How many verdicts on the paper's claims it settles, in all columns that its runs are read in.

    Raises:
        UserError: as :func:`table_of`.
    """
    table = table_of(bundle)
    columns = table.columns_of("paper")
    run = next(column.run or column.label for column in columns if column.label == bundle.column)
    read = {column.label for column in columns if (column.run or column.label) == run}
    return sum(
        len(read & set(each.columns))
        for claim in table.claims
        for each in claim.comparisons
        if "paper" in each.tiers and {each.better, each.than} <= set(bundle.rows)
    )
