"""From the job commands' flags to a job spec."""
