"""Results in a bucket before their job ends, as part objects."""
