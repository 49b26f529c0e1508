"""Bedrock's Converse: how a request is read, who signed it, and how an answer is written down.

The names are those of botocore's service model of bedrock-runtime (2023-09-30, Converse).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import orjson

from penstock_simulate.answers import refusals
from penstock_simulate.answers.refusals import Refusal
from penstock_simulate.reply import STANDARD_TIER, Usage

_FINISH = {"stop": "end_turn", "length": "max_tokens", "refusal": "guardrail_intervened"}
_SIGNED = re.compile(
    r"AWS4-HMAC-SHA256 Credential=([A-Za-z0-9_-]{4,128})/(\d{8})/([a-z0-9-]+)/([a-z0-9]+)/"
    r"aws4_request, ?SignedHeaders=([a-z0-9;-]+), ?Signature=[0-9a-f]{64}"
)


def key_of(headers: Mapping[str, str]) -> str | None:
    """Return the key as an Authorization header would have it: of a signed call, whose it is."""
    given = headers.get("Authorization")
    signed = None if given is None else _SIGNED.fullmatch(given)
    return given if signed is None else f"Bearer {signed[1]}"


def signing_fault(headers: Mapping[str, str], service: str) -> Refusal | None:
    """Return what is wrong with the form of a signature; of a Bearer's key nothing is.

    Whether it is right is not known here: the secret stays with the client."""
    given = headers.get("Authorization", "")
    if given.startswith("Bearer "):
        return None
    signed, at = _SIGNED.fullmatch(given), headers.get("X-Amz-Date", "")
    if not given:
        return _unsigned("MissingAuthenticationToken", "Missing Authentication Token")
    if signed is None or signed[4] != service or not at.startswith(signed[2]):
        return _unsigned("IncompleteSignature", f"The signature is not one for {service}.")
    if not {"host", "x-amz-date"} <= set(signed[5].split(";")):
        return _unsigned("IncompleteSignature", "host and x-amz-date must be signed.")
    return None


def _unsigned(code: str, message: str) -> Refusal:
    return Refusal(403, message, "invalid_request_error", code)


def refusal_of(body: Mapping[str, Any]) -> Refusal | None:
    """Return why a request cannot be used."""
    given, system = body.get("messages"), body.get("system", [])
    config = body.get("inferenceConfig", {})
    if not isinstance(given, list) or not given or not all(_is_message(one) for one in given):
        return refusals.invalid("messages: each needs a role and content, a list", "messages")
    if given[0]["role"] != "user":
        return refusals.invalid("A conversation must start with a user message.", "messages")
    if not isinstance(system, list) or not all(isinstance(one, dict) for one in system):
        return refusals.invalid("system: give a list of blocks", "system")
    most = config.get("maxTokens") if isinstance(config, dict) else False
    if most is not None and (type(most) is not int or most < 1):
        return refusals.invalid(f"inferenceConfig.maxTokens: {most!r}", "maxTokens")
    return None


def text_of(body: Mapping[str, Any]) -> str:
    """Return all the text of the prompt, the newest message last."""
    blocks = [*body.get("system", ()), *(one for row in body["messages"] for one in row["content"])]
    return "\n".join(_texts(blocks))


def last_of(body: Mapping[str, Any]) -> str:
    return "\n".join(_texts(body["messages"][-1]["content"]))


def max_tokens(body: Mapping[str, Any]) -> int | None:
    most: int | None = body.get("inferenceConfig", {}).get("maxTokens")
    return most


def wanted(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the request's wish for JSON as a chat's `response_format`; empty where it has none."""
    form, schema = _at(body, "outputConfig", "textFormat"), None
    if tool := forced_tool(body):
        schema = _at(tool, "inputSchema", "json") or {"type": "object"}
    elif text := _at(form, "structure", "jsonSchema", "schema"):
        schema = orjson.loads(text)
    if schema is None:
        return {}
    return {"response_format": {"type": "json_schema", "json_schema": {"schema": schema}}}


def forced_tool(body: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the tool that the answer must use."""
    choice, tools = _at(body, "toolConfig", "toolChoice"), _at(body, "toolConfig", "tools")
    named = _at(choice, "tool", "name")
    if not isinstance(choice, dict) or (named is None and "any" not in choice):
        return None
    specs = [_at(one, "toolSpec") for one in tools] if isinstance(tools, list) else []
    return next((one for one in specs if one and named in (None, one.get("name"))), None)


def converse_body(
    ident: str,
    model: str,
    text: str,
    finish: str,
    usage: Usage,
    tool: Mapping[str, Any] | None,
    tier: str,
) -> bytes:
    """Return the body. A refusal has a text of the guardrail, and none names its model."""
    block: dict[str, Any] = {"text": text or "Sorry, this cannot be answered."}
    reason = _FINISH[finish]
    if tool is not None and finish == "stop":
        used = {"toolUseId": f"tooluse_{ident}", "name": tool.get("name")}
        block, reason = {"toolUse": used | {"input": orjson.loads(text)}}, "tool_use"
    told = {
        "output": {"message": {"role": "assistant", "content": [block]}},
        "stopReason": reason,
        "usage": {
            "inputTokens": usage.prompt - usage.cached,
            "outputTokens": usage.completion,
            "totalTokens": usage.prompt + usage.completion,
            "cacheReadInputTokens": usage.cached,
            "cacheWriteInputTokens": 0,
        },
        "metrics": {"latencyMs": 1},
        "serviceTier": {"type": "default" if tier == STANDARD_TIER else tier},
    }
    return orjson.dumps(told)


def _is_message(given: object) -> bool:
    if not isinstance(given, dict) or given.get("role") not in ("user", "assistant"):
        return False
    content = given.get("content")
    return isinstance(content, list) and all(isinstance(one, dict) for one in content)


def _texts(blocks: list[dict[str, Any]]) -> Iterator[str]:
    return (one["text"] for one in blocks if isinstance(one.get("text"), str))


def _at(value: Any, *names: str) -> Any:
    for name in names:
        value = value.get(name) if isinstance(value, Mapping) else None
    return value
