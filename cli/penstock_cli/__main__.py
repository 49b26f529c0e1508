"""`python -m penstock_cli` is `penstock`."""

from penstock_cli.main import main

main()
