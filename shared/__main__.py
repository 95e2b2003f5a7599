"""The command line, as ``python -m shared``."""

import sys

from shared.command.reproduce import main

if __name__ == "__main__":
    sys.exit(main())
