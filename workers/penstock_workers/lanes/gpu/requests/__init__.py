"""From an OpenAI request body to a call of the engine, and back to an answer."""
