"""What runs in a child process: a job's hooks, answer schemas, and the calls of suspected items."""
