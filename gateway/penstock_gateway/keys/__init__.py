"""API keys over HTTP: who has the scope `keys` or `admin` makes, lists and revokes them.
docs/gateway.md is their page."""
