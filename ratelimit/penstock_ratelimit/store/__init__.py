"""What Redis holds of a quota: the scripts, their typed stubs, and how to read it from outside."""
