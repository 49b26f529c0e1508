"""Accept work: job specs, sources, validation, the wire message and the feeder."""
