"""Items are inferred in lanes, one folder each.

A lane makes one call per item; what its answer means is decided elsewhere."""
