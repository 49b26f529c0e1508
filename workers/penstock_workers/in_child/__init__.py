"""A child process runs a job's hooks, answer schemas, and the calls of suspected items."""
