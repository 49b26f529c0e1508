"""What a row of a source must be, and the request that it becomes."""
