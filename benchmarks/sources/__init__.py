"""What reading costs, whatever the documents come in: forms of the same rows, Penstock's two
passes, and peers."""
