"""Pictures of the dashboard and of a run's progress, for the documentation."""
