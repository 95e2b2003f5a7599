"""The command line of the suite, with the toy domain in it."""

import sys

from shared.command import domains, reproduce, slurm, worth

if __name__ == "__main__":
    domains.DOMAINS = (*domains.DOMAINS, "toy")
    slurm.MODULE = "toy"
    cells = ("toy/slow/table-1", "left", ("plain", "better"), (0,))
    worth.BUNDLES = (worth.Bundle(*cells, why="it is quick"),)
    sys.exit(reproduce.main())
