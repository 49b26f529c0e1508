"""`penstock serve`: a private Batch API on one machine, everything embedded."""
