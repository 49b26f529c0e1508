"""What is stored in SQL, a typed store for each kind."""
