"""OpenAI's Files and Batches, as every OpenAI-shaped provider has them."""
