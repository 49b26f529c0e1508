"""SQL is read and written through a typed store for each kind."""
