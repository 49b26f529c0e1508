"""Jobs as steps of other orchestrators.

Each module needs a package that Penstock does not install."""
