"""OpenAI's batches: files of requests, answered as files."""
