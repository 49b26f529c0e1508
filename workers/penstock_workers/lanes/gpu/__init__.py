"""The `gpu` lane: vLLM hosted by the worker, or in a server beside it."""
