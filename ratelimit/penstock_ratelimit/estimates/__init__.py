"""What a request will cost: estimates that learn from answers, and share what they learned."""
