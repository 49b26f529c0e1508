"""Commands show figures, progress, reports and the reasons why a job is slow."""
