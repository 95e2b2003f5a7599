"""The command line of the suite, with the toy domain alone."""

import sys

from shared.command import cells, reproduce

if __name__ == "__main__":
    cells.DOMAINS = ("toy",)  # the others take longer to be imported than it to be run
    sys.exit(reproduce.main())
