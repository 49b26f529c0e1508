"""Calls of callers who wait: each is an urgent document of an open job, with the queue, limits and
ledger of all others."""
