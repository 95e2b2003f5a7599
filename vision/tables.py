"""The vision tables of the papers, collected."""

from shared.experiment.tables import Table
from vision.tables_cllr import CLLR
from vision.tables_lmcl import LMCL
from vision.tables_margins import MARGINS
from vision.tables_mmcl import MMCL

TABLES: dict[str, tuple[Table, ...]] = {
    "lmcl": LMCL,
    "cllr": CLLR,
    "mmcl": MMCL,
    "margins": MARGINS,
}
