"""From a spec and a source to a job: what is asked of both, and the row that is written."""
