"""The encoder and its batches: texts gathered by length, a budget of tokens for each batch, one
thread that computes."""
