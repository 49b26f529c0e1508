"""What a job's author imports: ``from penstock_workers.hooks import Invalid``.

Beside it: hooks and answer schemas."""

from penstock_workers.hooks.contract import Invalid, Item

__all__ = ["Invalid", "Item"]
