"""What one part costs: HTTP clients, the embed lane's batches, memory, tracing, and Flower's
events."""
