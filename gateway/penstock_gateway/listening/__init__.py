"""Connections: how many there are, for how long one may say nothing, and how long a request's head
may be."""
