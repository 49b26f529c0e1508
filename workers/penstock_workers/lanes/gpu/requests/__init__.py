"""Makes a call of the engine from an OpenAI request body, and an answer of what the engine says."""
