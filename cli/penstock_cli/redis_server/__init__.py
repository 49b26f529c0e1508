"""The private Redis of one-machine mode: which program, where it listens, how it is started,
watched and stopped."""
