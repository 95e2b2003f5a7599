"""A domain for the tests of the core: cells that work, fail, diverge, and lack their data."""

from toy.tables import TABLES
from toy.train import Config, run

__all__ = ["TABLES", "Config", "run"]
