"""The job of a command: from its flags to a spec, and what it is expected to need."""
