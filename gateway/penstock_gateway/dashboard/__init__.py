"""The pages: jobs, their dead letters and answers, workers, quotas and spending, for people with a
browser."""
