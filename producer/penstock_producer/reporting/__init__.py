"""What is said of a job to people: the figures of its account, and shared sentences."""
