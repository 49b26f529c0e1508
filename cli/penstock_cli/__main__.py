"""`python -m penstock_cli` is `penstock`."""

from penstock_cli.entry import main

main()
