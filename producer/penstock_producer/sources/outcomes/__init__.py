"""The outcomes of another job as a source."""
