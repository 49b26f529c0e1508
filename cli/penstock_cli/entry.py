"""The `penstock` command begins here: it says so when only the producer's part is installed."""

from __future__ import annotations

import gc
import os
import signal
import sys
from types import FrameType

_OPTIONAL = (
    "typer",
    "rich",
    "celery",
    "kombu",
    "aiohttp",
    "aiohappyeyeballs",
    "aiolimiter",
    "httptools",
    "jsonschema",
)


# Modules make a hundred thousand objects that stay: with Python's 700 new objects between two walks
# of the collector, a tenth of a command's start would be such walks.
NEW_OBJECTS = 50_000


def main() -> None:
    gc.set_threshold(NEW_OBJECTS)
    # and not ignored, as in the background of a shell
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _leave)
    try:
        from penstock_cli.main import main as run
    except ModuleNotFoundError as error:
        if error.name not in _OPTIONAL:
            raise
        if sys.argv[1:] == ["--version"]:
            from penstock_cli.version import version_line

            print(version_line())  # noqa: T201  typer.echo is what is missing
            return
        sys.exit(
            f"penstock: the command line needs {error.name}, which a bare `pip install penstock` "
            "leaves out; install it with: pip install 'penstock[worker]'"
        )
    try:
        run()
    finally:
        gc.freeze()  # what is left ends with the process: walking it took a third of a second


def _leave(_number: int, _frame: FrameType | None) -> None:
    """End at once on Ctrl-C while modules are still imported: nothing has begun yet."""
    os.write(2, b"penstock: interrupted\n")
    os._exit(130)
