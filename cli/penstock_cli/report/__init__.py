"""What became of a job: its account, and the four forms that it is written in."""
