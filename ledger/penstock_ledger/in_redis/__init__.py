"""The half of the ledger that is in Redis: calls of the scripts, and what goes in and comes out."""
