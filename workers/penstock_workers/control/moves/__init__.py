"""A job changes its lane while it runs: what the lane before still holds goes on in the one that it
has now."""
