"""`python -m dubnb` is the command `dubnb`; light, so that Ctrl-C while the rest is imported is no traceback either."""

import sys

STOPPED = 130


def main() -> int:
    """Run one command; returns its exit code."""
    try:
        from dubnb.cli import main as run

        return run()
    except KeyboardInterrupt:
        sys.stderr.write("dubnb: stopped by Ctrl-C\n")
        return STOPPED


if __name__ == "__main__":
    sys.exit(main())
