"""Jobs that start themselves: when they are due, what is done about missed times, and how one is
started."""
