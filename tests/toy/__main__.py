"""The command line of the suite, with the toy domain alone."""

import sys

from shared.command import domains, reproduce, slurm, worth

if __name__ == "__main__":
    domains.DOMAINS = ("toy",)  # the others take longer to be imported than it to be run
    slurm.MODULE = "toy"
    cells = ("toy/slow/table-1", "left", ("plain", "better"), (0,))
    worth.BUNDLES = (worth.Bundle(*cells, why="it is quick"),)
    sys.exit(reproduce.main())
