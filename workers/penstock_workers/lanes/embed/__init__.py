"""The `embed` lane: an encoder or a cross-encoder hosted by the worker.

Nothing here imports torch before it starts."""
