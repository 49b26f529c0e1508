"""The bodies of `/v1/rerank`, `/v1/score` and `/classify`, as vLLM's server has them, for every
lane that answers them."""
