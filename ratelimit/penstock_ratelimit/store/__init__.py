"""Redis holds a quota: the scripts, their typed stubs, and how to read it from outside."""
