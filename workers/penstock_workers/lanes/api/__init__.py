"""The `api` lane: real-time calls to an OpenAI-compatible server over HTTP."""
