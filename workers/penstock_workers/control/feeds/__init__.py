"""Feeds have sizes and a process that leads them."""
