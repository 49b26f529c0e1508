"""How many requests may be in flight where no limit is published."""
