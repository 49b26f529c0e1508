"""A job goes to one of its lanes, and at times to another.

The modules hold what is known of each lane, the choice, and the step that asks for it."""
