"""`python -m penstock_cli.simulate`: the simulator without the rest of the command line."""

from __future__ import annotations

import typer

from penstock_cli.errors import CliError
from penstock_cli.simulate.command import simulate


def main() -> None:
    app = typer.Typer(add_completion=False)
    app.command()(simulate)
    try:
        app()
    except CliError as error:
        typer.echo(f"error: {error}", err=True)
        raise SystemExit(error.exit_status) from None


if __name__ == "__main__":
    main()
