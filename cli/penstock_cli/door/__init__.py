"""Commands of the HTTP doors: serving them, and the keys of their callers."""
