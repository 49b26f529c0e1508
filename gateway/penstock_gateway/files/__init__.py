"""OpenAI's Files: uploads that stream to disk or a bucket, and what batches have written."""
