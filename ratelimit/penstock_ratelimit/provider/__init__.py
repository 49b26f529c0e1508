"""Provider by provider, this reads headers and refusals, and knows how requests are metered."""
