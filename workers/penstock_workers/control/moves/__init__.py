"""Moves a job to another lane while it runs.

What the lane before still holds goes on in the one that the job has now."""
