"""The vision tables of the papers, collected."""

from pathlib import Path

from shared.experiment.published import with_claims
from vision.tables_cllr import CLLR
from vision.tables_lmcl import LMCL
from vision.tables_margins import MARGINS
from vision.tables_mmcl import MMCL

TABLES = with_claims(
    {"lmcl": LMCL, "cllr": CLLR, "mmcl": MMCL, "margins": MARGINS},
    Path(__file__).parent / "published" / "claims.toml",
)
