"""Worker processes on one machine: forked or started, supervised, and ended with the process that
started them."""
