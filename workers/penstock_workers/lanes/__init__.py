"""How items are inferred: one folder per lane.

A lane makes one call per item; what its answer means is decided elsewhere."""
