"""What is fed, how much of it, and which process leads the feed of a job."""
