"""A model of a fleet, by which a job is looked at before it runs (docs/plan.md).

It is plain Python, seeded, without any store.
"""
