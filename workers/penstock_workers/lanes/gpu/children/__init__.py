"""What can hang or grow without end runs in processes of its own: trials of grammars, and vLLM's
parsers of answers."""
