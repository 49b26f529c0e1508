"""Events that are sent to callers: signed as Standard Webhooks say, at least once, and never into a
private network."""
