"""Pace work: one shared quota of requests and tokens, tickets and backoff. Usable alone."""
