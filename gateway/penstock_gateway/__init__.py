"""Serve Penstock over HTTP: the OpenAI Files and Batches API, the jobs API and the dashboard.

This room is kept for the HTTP gateway; nothing is built here yet.
"""

__all__: list[str] = []
