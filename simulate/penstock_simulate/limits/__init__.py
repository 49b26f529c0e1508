"""The strict limits of the provider: meters, charges, capacity and money."""
