"""A model of a fleet, by which a job is looked at before it runs: plain Python, seeded, without any
store; docs/plan.md."""
