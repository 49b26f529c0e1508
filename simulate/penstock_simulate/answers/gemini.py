"""Gemini's generateContent: how a request is read, and how an answer is written down."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import orjson

from penstock_simulate.answers import refusals
from penstock_simulate.answers.refusals import Refusal
from penstock_simulate.reply import STANDARD_TIER, Usage

SCHEMA_DEPTH = 32  # nested schemas that are read; deeper ones are left as they are
_OBJECT = {"type": "object"}
_FINISH = {"stop": "STOP", "length": "MAX_TOKENS"}


def refusal_of(body: Mapping[str, Any]) -> Refusal | None:
    """Return why a request cannot be used, in the words of the API."""
    contents, config = body.get("contents"), body.get("generationConfig", {})
    if not isinstance(contents, list) or not contents:
        return refusals.invalid(
            "* GenerateContentRequest.contents: contents is not specified", "contents"
        )
    if not all(_is_content(content) for content in contents):
        return refusals.invalid(
            'Invalid value at "contents": each needs "parts", a list of objects', "contents"
        )
    if "systemInstruction" in body and not _is_content(body["systemInstruction"]):
        return refusals.invalid('Invalid value at "system_instruction"', "systemInstruction")
    if not isinstance(config, dict):
        return refusals.invalid('Invalid value at "generation_config"', "generationConfig")
    most = config.get("maxOutputTokens")
    if most is not None and (not isinstance(most, int) or isinstance(most, bool) or most < 1):
        return refusals.invalid(
            f"max_output_tokens must be positive, not {most!r}", "maxOutputTokens"
        )
    return None


def text_of(body: Mapping[str, Any]) -> str:
    """Return all the text of the prompt, the newest content last."""
    contents = [body["systemInstruction"]] if "systemInstruction" in body else []
    return "\n".join(text for content in contents + body["contents"] for text in _texts(content))


def last_of(body: Mapping[str, Any]) -> str:
    return "\n".join(_texts(body["contents"][-1]))


def max_tokens(body: Mapping[str, Any]) -> int | None:
    most: int | None = body.get("generationConfig", {}).get("maxOutputTokens")
    return most


def wanted(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the request's wish for JSON as a chat's `response_format`; empty where it has none."""
    config = body.get("generationConfig", {})
    if tool := forced_tool(body):
        schema = tool.get("parametersJsonSchema") or tool.get("parameters")
        config = {"responseMimeType": "application/json", "responseJsonSchema": schema or _OBJECT}
    if config.get("responseMimeType") != "application/json":
        return {}
    schema = config.get("responseJsonSchema") or config.get("responseSchema")
    if schema is None:
        return {"response_format": {"type": "json_object"}}
    return {
        "response_format": {
            "type": "json_schema",
            "json_schema": {"schema": _lower(schema, SCHEMA_DEPTH)},
        }
    }


def forced_tool(body: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the function that the answer must call."""
    config = body.get("toolConfig")
    calling = config.get("functionCallingConfig") if isinstance(config, dict) else None
    if not isinstance(calling, dict) or calling.get("mode") != "ANY":
        return None
    tools, named = body.get("tools"), calling.get("allowedFunctionNames")
    names = named if isinstance(named, list) else []
    for tool in tools if isinstance(tools, list) else ():
        declared = tool.get("functionDeclarations") if isinstance(tool, dict) else None
        for one in declared if isinstance(declared, list) else ():
            if isinstance(one, dict) and (not names or one.get("name") in names):
                return one
    return None


def content_body(
    ident: str,
    model: str,
    text: str,
    finish: str,
    usage: Usage,
    tool: Mapping[str, Any] | None,
    tier: str,
) -> bytes:
    """Return the body; a blocked prompt has no candidate, but a reason."""
    counted: dict[str, Any] = {
        "promptTokenCount": usage.prompt,
        "candidatesTokenCount": usage.completion,
        "totalTokenCount": usage.prompt + usage.completion,
        "serviceTier": "standard" if tier == STANDARD_TIER else tier,
    }
    if usage.cached:
        counted["cachedContentTokenCount"] = usage.cached
    about = {"usageMetadata": counted, "modelVersion": model, "responseId": ident}
    if finish == "refusal":
        return orjson.dumps({"promptFeedback": {"blockReason": "PROHIBITED_CONTENT"}} | about)
    part: dict[str, Any] = {"text": text}
    if tool is not None and finish == "stop":
        part = {"functionCall": {"name": tool.get("name"), "args": orjson.loads(text)}}
    content = {"parts": [part], "role": "model"}
    return orjson.dumps(
        {"candidates": [{"content": content, "finishReason": _FINISH[finish], "index": 0}]} | about
    )


def _is_content(given: object) -> bool:
    parts = given.get("parts") if isinstance(given, dict) else None
    return isinstance(parts, list) and all(isinstance(part, dict) for part in parts)


def _texts(content: Mapping[str, Any]) -> Iterator[str]:
    return (part["text"] for part in content["parts"] if isinstance(part.get("text"), str))


def _lower(schema: Any, depth: int) -> Any:
    """Return the names of types as JSON schemas have them: Gemini's own are in capitals."""
    if depth == 0:
        return schema
    if isinstance(schema, list):
        return [_lower(part, depth - 1) for part in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        name: part.lower() if name == "type" and isinstance(part, str) else _lower(part, depth - 1)
        for name, part in schema.items()
    }
