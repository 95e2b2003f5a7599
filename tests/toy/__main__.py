"""The command line of the suite, with the toy domain in it."""

import sys

from shared.command import domains, reproduce

if __name__ == "__main__":
    domains.DOMAINS = (*domains.DOMAINS, "toy")
    sys.exit(reproduce.main())
