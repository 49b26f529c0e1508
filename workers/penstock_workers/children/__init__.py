"""Child processes for code from outside: hooks, schemas, and the calls of suspected items.

None of it runs in the worker itself: a child can be killed, and its death shows which call was the
cause.
"""
