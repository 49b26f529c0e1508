"""The `penstock` command and one-machine mode."""
