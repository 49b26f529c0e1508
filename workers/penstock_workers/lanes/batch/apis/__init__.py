"""One dialect of batch APIs each: how OpenAI, Anthropic and Gemini take, show and answer a
batch."""
