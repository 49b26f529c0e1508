"""Child processes for code from outside: hooks, schemas, and the calls of items that may have
crashed a worker.

None of it runs in the worker itself: a child can be killed, and its death shows which call was the
cause.
"""
