"""Jobs that start themselves: when they are due, and what one is started from."""
