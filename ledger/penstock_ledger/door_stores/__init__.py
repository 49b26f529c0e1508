"""What the HTTP doors keep in SQL."""
