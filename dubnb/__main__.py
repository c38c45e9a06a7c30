"""`python -m dubnb` runs the command `dubnb`. It imports little, so that Ctrl-C during imports gives no traceback."""

import signal
import sys

STOPPED, TERMINATED = 130, 143


def main() -> int:
    """Run one command and return its exit code."""
    try:
        from dubnb._signals import stoppable

        with stoppable():
            from dubnb.cli import main as run

            return run()
    except KeyboardInterrupt as stop:
        terminated = type(stop) is not KeyboardInterrupt
        sys.stderr.write(f"dubnb: stopped by {'SIGTERM' if terminated else 'Ctrl-C'}\n")
        return TERMINATED if terminated else STOPPED
    finally:
        exec("")  # forgets that Ctrl-C stopped an exec, as namedtuple calls it: Python would end by SIGINT, not by 130
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C while Python ends gives no traceback


if __name__ == "__main__":
    sys.exit(main())
