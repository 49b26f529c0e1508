"""Jobs over HTTP: all that the command line can do with them. docs/gateway-jobs.md is their
page."""
