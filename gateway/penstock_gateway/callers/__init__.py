"""Callers have keys and tenants, and each may do some things and not others."""
