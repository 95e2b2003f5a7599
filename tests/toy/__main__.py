"""The command line of the suite, with the toy domain in it."""

import sys

from shared.command import domains, reproduce, slurm

if __name__ == "__main__":
    domains.DOMAINS = (*domains.DOMAINS, "toy")
    slurm.MODULE = "toy"
    sys.exit(reproduce.main())
