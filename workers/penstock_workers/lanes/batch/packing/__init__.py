"""Documents on their way into provider batches: their ids, the files of a batch, and what is packed
together."""
