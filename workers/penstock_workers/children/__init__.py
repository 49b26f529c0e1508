"""Child processes for what a submitter wrote: hooks, schemas, and the calls of items under suspicion.

Nothing of that runs in the worker itself: a child can be killed, and its death says which call was to blame.
"""
