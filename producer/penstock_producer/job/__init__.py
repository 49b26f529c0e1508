"""A job has a spec and options, and asks for what is allowed."""
