"""The states of a job: paused, cancelled, out of budget, recovered, complete."""
