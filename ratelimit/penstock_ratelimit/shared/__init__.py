"""One quota for a whole fleet: the limiter over Redis and its parts."""
