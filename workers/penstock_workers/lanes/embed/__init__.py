"""The `embed` lane: an encoder hosted by the worker, for `/v1/embeddings`. Nothing here imports torch before it starts."""
