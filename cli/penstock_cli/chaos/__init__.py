"""Break a fleet on purpose: what is done to it, what must hold afterwards, and `penstock chaos`."""
