"""Anthropic's message batches: requests in one body, answered as a stream of lines."""
