"""A row of a source has a form and becomes a request."""
