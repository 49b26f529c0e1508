"""One module per command, or per few small ones that belong together.

Heavy imports happen inside the functions."""
