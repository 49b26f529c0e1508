"""The APIs that models are asked by, and the one translation between them.

OpenAI's chat stands in the middle: requests are read into it and written from it, and so are
answers.
"""

from typing import Final

__all__ = ["CHAT", "COMPLETIONS", "CONVERSE", "GENERATE", "MESSAGES", "RESPONSES"]

CHAT: Final = "/v1/chat/completions"
COMPLETIONS: Final = "/v1/completions"
RESPONSES: Final = "/v1/responses"
MESSAGES: Final = "/v1/messages"  # Anthropic's
# Gemini's: where it is asked, `models/`, the model's name and a colon stand in between
GENERATE: Final = "/v1beta/generateContent"
CONVERSE: Final = "/model/converse"  # Amazon Bedrock's: likewise, the model in between
