"""The command line of the suite, with the toy domain in it."""

import sys

from shared import reproduce

if __name__ == "__main__":
    reproduce.DOMAINS = (*reproduce.DOMAINS, "toy")
    sys.exit(reproduce.main())
