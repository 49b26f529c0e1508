"""The `penstock` command and one-machine mode.

Nothing imports it: `penstock` and `python -m penstock_cli` are its doors."""

__all__: list[str] = []
