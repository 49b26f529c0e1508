"""What an item cannot go on without: its job and its body."""
