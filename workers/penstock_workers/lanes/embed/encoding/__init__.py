"""The encoder and its batches.

Texts are gathered by length, each batch has a budget of tokens, and one thread computes."""
