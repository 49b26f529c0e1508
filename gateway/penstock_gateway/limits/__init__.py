"""What keeps requests to the providers from starting, and how their quotas are used."""
