"""Runs vLLM's own parsers of reasoning and tool calls in a child process, as vLLM's server does.

Parsers are patterns over texts that a model wrote, and documents bring the tools: here one that
hangs can be ended.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from penstock_workers.lanes.gpu.children.grammar_child import CONSTRAINTS
from penstock_workers.lanes.gpu.children.line_child import DETAIL_CHARS, bound_memory, serve
from penstock_workers.lanes.gpu.engine.engines import upstream

PROGRAM: Final = "penstock_workers.lanes.gpu.children.parser_child"
PROTOCOL: Final = "vllm.entrypoints.openai.chat_completion.protocol"


class ParserFacts(NamedTuple):
    """The facts that the process needs; pickled."""

    model_config: Any  # vLLM's ModelConfig
    reasoning: str | None
    tool: str | None


class _Parsers:
    """One class of vLLM's for both; an object of it for each answer, since they keep state."""

    def __init__(self, facts: ParserFacts) -> None:
        self._model_config, self._auto_tools = facts.model_config, facts.tool is not None
        self._tokenizer = upstream("vllm.tokenizers", "cached_tokenizer_from_config")(
            facts.model_config
        )
        self._class = upstream("vllm.parser", "ParserManager").get_parser(
            tool_parser_name=facts.tool,
            reasoning_parser_name=facts.reasoning,
            enable_auto_tools=self._auto_tools,
            model_name=facts.model_config.model,
            tokenizer=self._tokenizer,
        )
        self._request_class = upstream(PROTOCOL, "ChatCompletionRequest")

    def answer(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Return how the engine is to be asked for a request, or what its answers say.

        The answer is `problem` where neither can be known."""
        try:
            request = self._request_class(**asked["request"])
            answers = asked.get("answers")
            if answers is None:
                return self._asked_for(request)
            return {"read": [self._read(one, request, asked["prompt"]) for one in answers]}
        except Exception as error:  # vLLM's, pydantic's, xgrammar's, in whatever class
            return {
                "problem": f"{type(error).__name__}: {' '.join(str(error).split())}"[:DETAIL_CHARS]
            }

    def _parser(self, request: Any) -> Any:
        return self._class(
            self._tokenizer,
            request.tools,
            chat_template_kwargs=request.chat_template_kwargs or {},
            model_config=self._model_config,
        )

    def _asked_for(self, request: Any) -> dict[str, Any]:
        adjusted = self._parser(request).adjust_request(request=request)
        wanted = adjusted.extract_structured_outputs()
        constraint = None
        if wanted is not None:
            constraint = {
                name: value
                for name in CONSTRAINTS
                if (value := getattr(wanted, name, None)) is not None
            }
        return {"skip_special_tokens": adjusted.skip_special_tokens, "constraint": constraint}

    def _read(self, one: dict[str, Any], request: Any, prompt: list[int]) -> dict[str, Any]:
        parser = self._parser(request)
        parser.set_prompt_token_ids(prompt)
        reasoning, content, calls = parser.parse(
            one["text"],
            request,
            enable_auto_tools=self._auto_tools,
            model_output_token_ids=one["token_ids"],
        )
        if not request.parallel_tool_calls:
            calls = (calls or [])[:1]
        make_id = upstream("vllm.renderers.chat_utils", "make_tool_call_id")
        return {
            "reasoning": reasoning,
            "content": content,
            "tool_calls": [
                {
                    "id": call.id or make_id(),
                    "type": "function",
                    "function": {"name": call.name, "arguments": call.arguments},
                }
                for call in calls or []
            ],
            "reasoning_tokens": parser.count_reasoning_tokens(one["token_ids"]),
        }


def _made(facts: Any) -> Callable[[Any], dict[str, Any]]:
    parsers = _Parsers(facts)
    bound_memory()
    return parsers.answer


if __name__ == "__main__":
    serve(_made)
