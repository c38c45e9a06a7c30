"""`python -m dubnb` is the command `dubnb`."""

import sys

from dubnb.cli import main

if __name__ == "__main__":
    sys.exit(main())
