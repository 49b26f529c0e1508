"""Where the `penstock` command begins: it says so when only the producer's part is installed."""

from __future__ import annotations

import sys

_OPTIONAL = ("typer", "rich", "celery", "kombu", "aiohttp", "aiolimiter", "jsonschema")


def main() -> None:
    try:
        from penstock_cli.main import main as run
    except ModuleNotFoundError as error:
        if error.name not in _OPTIONAL:
            raise
        sys.exit(
            f"penstock: the command line needs {error.name}, which a bare `pip install penstock` leaves out; "
            "install it with: pip install 'penstock[worker]'"
        )
    run()
