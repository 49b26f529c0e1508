"""Documents are fed by the process that leads their feed, as many as there is room for."""
