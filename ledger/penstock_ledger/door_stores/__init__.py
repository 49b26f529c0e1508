"""The HTTP doors keep their own rows in SQL."""
