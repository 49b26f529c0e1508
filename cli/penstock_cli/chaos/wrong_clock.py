"""`penstock` in a process whose clock is wrong, by so many seconds as its first word says.

It is the clock that Python's `time` reads, from before anything else is imported. What spans are
measured by (`time.monotonic`) is right, as it is on such machines.
"""

import sys
import time

COMMAND = [sys.executable, "-m", "penstock_cli.chaos.wrong_clock"]


def main() -> None:
    """Set the clock by the first word, and be `penstock` with the others."""
    off_s, right, right_ns = float(sys.argv.pop(1)), time.time, time.time_ns
    time.time = lambda: right() + off_s
    time.time_ns = lambda: right_ns() + int(off_s * 1e9)
    from penstock_cli.entry import main as penstock

    penstock()


if __name__ == "__main__":
    main()
