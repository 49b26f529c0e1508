"""What providers say and charge: their headers, their refusals, how they meter."""
