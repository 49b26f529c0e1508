"""Job spec files: everything that the flags of `penstock run` and `submit` can say, in one YAML or JSON file."""
