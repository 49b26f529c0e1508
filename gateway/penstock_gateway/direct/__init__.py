"""Calls of callers who wait: each is an urgent document of an open job."""
