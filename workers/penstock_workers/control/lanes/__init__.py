"""Which of its lanes a job goes to, and when it goes to another.

The modules hold what is known of each lane, the choice, and the step that asks for it."""
