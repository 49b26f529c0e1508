"""People read of a job the figures of its account, and shared sentences."""
