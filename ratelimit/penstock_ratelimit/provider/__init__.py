"""Providers say and charge things by their headers, their refusals, and how they meter."""
