"""The batch APIs of providers, by the clock: a batch is a file on disk and a few times, and nothing
runs for it."""
