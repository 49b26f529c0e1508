"""What is said of a job to people: the figures of its account, and sentences that several doors
share."""
