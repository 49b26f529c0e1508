"""Equal requests are sent once: an item takes the answer to an equal one, waits for it, or is the
one that is sent."""
