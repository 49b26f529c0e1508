"""The batch APIs of providers, by the clock: a batch is a file and a few times.

Nothing runs for it."""
