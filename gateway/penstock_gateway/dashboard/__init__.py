"""The web pages: jobs, their dead letters and answers, workers, quotas and spending."""
