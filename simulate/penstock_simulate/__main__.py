"""`python -m penstock_simulate`: the simulated provider without the rest of the command line."""

from __future__ import annotations

import typer

from penstock_simulate.choices import BadSetting
from penstock_simulate.command import simulate


def main() -> None:
    app = typer.Typer(add_completion=False)
    app.command()(simulate)
    try:
        app()
    except BadSetting as error:
        typer.echo(f"error: {error}", err=True)
        raise SystemExit(error.exit_status) from None


if __name__ == "__main__":
    main()
