"""What a job is: its spec and options, and what may be asked for."""
