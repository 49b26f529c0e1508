"""Outputs in buckets of S3 and of stores that speak its protocol."""
