"""Which of its lanes a job goes to, and when it goes to another: what is known of each, the choice,
and the step that asks."""
