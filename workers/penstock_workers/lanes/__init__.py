"""How items are inferred. A lane takes a request body and comes back with what happened; it never judges and never retries."""

from __future__ import annotations

from penstock_workers.lanes.base import Lane, Prepared, Request

__all__ = ["Lane", "Prepared", "Request"]
