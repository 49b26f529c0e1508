"""How an error looks: as clients of OpenAI's and Anthropic's APIs know it, as problem details (RFC
9457), or as a page."""
