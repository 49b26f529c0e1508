"""Bodies of embeddings requests and answers, and the types of numbers in them."""
