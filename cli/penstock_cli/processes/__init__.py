"""Worker processes on one machine: forked or started, supervised, and ended with their parent."""
