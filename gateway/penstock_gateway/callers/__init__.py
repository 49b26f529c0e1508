"""Who asks: keys, tenants and what each may."""
