"""From a source into the queue: the feeder and the wire message."""
