"""Jobs over HTTP: everything that the command line can do with them (docs/gateway-jobs.md)."""
