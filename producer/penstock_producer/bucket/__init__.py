"""Write results below a prefix of a bucket."""
