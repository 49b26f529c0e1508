"""What every request passes before its route: its path, its query, its body."""
