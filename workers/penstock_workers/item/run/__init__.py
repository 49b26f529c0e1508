"""The recipe of an item (``runner.py``) and its steps, until it has an outcome."""
