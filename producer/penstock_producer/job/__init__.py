"""A job is described by a spec, whose options and requests are checked here."""
