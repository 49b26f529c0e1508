"""Makes calls of the engine from OpenAI request bodies: which model, which tokens, how long.

Runs in threads. Also the tools that a document offers to the model, and how its answers are to be
taken apart.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Final

import orjson

from penstock_producer.errors import seen
from penstock_workers.item.lane import Request
from penstock_workers.lanes.gpu.children.parser_child import PROTOCOL
from penstock_workers.lanes.gpu.engine.adapters import Adapter, Adapters
from penstock_workers.lanes.gpu.engine.engines import EngineCall, RequestRefused, upstream
from penstock_workers.lanes.gpu.requests.fields import (
    check_named_tokens,
    check_types,
    refuse_templates,
)
from penstock_workers.lanes.gpu.requests.prompts import (
    EFFORT,
    ChatPrompts,
    Prompt,
    TextChats,
    Tokenizers,
)
from penstock_workers.lanes.gpu.requests.sampling import asked_tokens, sampling_params
from penstock_workers.lanes.gpu.requests.scoring import (
    Classes,
    ScoringFacts,
    ask_of,
    occupied,
    pooling_params,
    tokens_of,
)
from penstock_workers.lanes.gpu.settings import GpuSettings
from penstock_workers.lanes.scoring import Task, task_of

FIELDS: Final = ("tools", "tool_choice", "parallel_tool_calls")
TOOLS_MAX: Final = 128  # as at OpenAI


def check_tools(body: dict[str, Any], *, has_parser: bool, chat: bool) -> None:
    """Bring tools into the form in which vLLM's server gives them to chat templates.

    Raises RequestRefused."""
    named = [name for name in FIELDS if body.get(name) not in (None, [])]
    if not named:
        return
    if not chat:
        raise RequestRefused(f"{named[0]}: completions call no tools; send a chat")
    if not has_parser:
        raise RequestRefused(
            f"{named[0]}: this worker has no tool parser: set gpu.tool_parser, or use the sidecar "
            "(gpu.upstream_url)"
        )
    tools = body.get("tools")
    if not isinstance(tools, list) or not tools:
        raise RequestRefused(
            f"tools is {seen(tools)}, and {named[0]} is set: give a list of tools, or leave it out"
        )
    if len(tools) > TOOLS_MAX:
        raise RequestRefused(f"tools has {len(tools)} entries, and may have {TOOLS_MAX}")
    make = upstream(PROTOCOL, "ChatCompletionToolsParam")
    try:
        body["tools"] = [make.model_validate(tool).model_dump() for tool in tools]
    except ValueError as error:  # pydantic's
        raise RequestRefused(f"tools: {error}") from error


def to_parse(body: Mapping[str, Any], settings: GpuSettings) -> dict[str, Any] | None:
    """Return what vLLM's parsers need to know of this chat.

    None where its answers are taken as they are."""
    tools = body.get("tools") or None
    if settings.reasoning_parser is None and (settings.tool_parser is None or tools is None):
        return None
    request: dict[str, Any] = {
        "messages": [],
        "chat_template_kwargs": body.get("chat_template_kwargs") or {},
    }
    if body.get("skip_special_tokens") is not None:
        request["skip_special_tokens"] = body["skip_special_tokens"]
    if tools is None:
        return request
    given = {name: body[name] for name in FIELDS if body.get(name) is not None}
    return request | {"tool_choice": "auto"} | given


def must_call(parsed: Mapping[str, Any] | None) -> bool:
    """Return whether the request wants a call whatever else is said.

    It may want one of any tool, or of one that it names."""
    choice = (parsed or {}).get("tool_choice")
    return choice == "required" or isinstance(choice, dict)


PRIORITIES = {"urgent": -1, "normal": 0, "low": 1}  # vLLM runs lower ones first
TRIM_ROUNDS = 4  # a shorter text may split into a few more tokens than were counted
PROBE_TOKEN = 0  # every vocabulary has it
TRIM_MARGIN = 8  # tokens cut beyond what is too much, for the same reason


class UnknownModel(RequestRefused):
    """The request names a model that this worker does not host."""


class ContextOverflow(RequestRefused):
    """Prompt and answer do not fit into the model's context."""


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """The facts of the loaded model that are needed."""

    names: frozenset[str]
    context: int  # tokens, prompt and answer together
    defaults: Mapping[str, Any]  # sampling parameters that the model's makers recommend
    pools: bool  # whether it embeds or classifies instead of generating
    classes: Classes = field(default_factory=Classes)


@dataclass(frozen=True, slots=True)
class Facts:
    """The parts of the request that the reply repeats."""

    model: str
    chat: bool
    base64: bool = False
    # what vLLM's parsers of answers need to know of it; None = none is asked
    parsed: Mapping[str, Any] | None = None


class CallBuilder:
    """Builds calls for one loaded model. ``build`` may run in several threads."""

    def __init__(
        self,
        settings: GpuSettings,
        tokenizers: Tokenizers,
        facts: ModelFacts,
        adapters: Adapters,
        chats: ChatPrompts | None = None,
    ) -> None:
        """Build calls for one engine; without ``chats``, chats are taken to be of text."""
        self._settings = settings
        self._model = settings.model or ""
        self._adapters = adapters
        self._tokenizers = tokenizers
        self._facts = facts
        self._chats = chats or TextChats(tokenizers)
        self.decodes_media = self._chats.decodes_media
        self._numbers = count()

    def build(self, request: Request) -> tuple[EngineCall, int]:
        """Build the call, and return it with the tokens that it may come to occupy.

        Raises RequestRefused."""
        body = _read(request.body)
        check_types(body)
        model = body.get("model") or self._model
        adapter = self._adapter(model)
        task = task_of(request.endpoint)
        if task is not None:
            return self._scoring(task, request, model, adapter)
        if request.endpoint.endswith("/embeddings"):
            return self._embedding(request, body, model, adapter)
        if self._facts.classes.labels:
            raise RequestRefused(
                f"{self._model} classifies and does not generate: send items to /classify"
            )
        if self._facts.pools:
            raise RequestRefused(
                f"{self._model} embeds and does not generate: send items to /v1/embeddings"
            )
        if request.endpoint.endswith("/chat/completions"):
            chat = True
        elif request.endpoint.endswith("/completions"):
            chat = False
        else:
            raise RequestRefused(
                f"the gpu lane has no {request.endpoint}: chat/completions, completions, "
                "embeddings, rerank, score, classify"
            )
        if body.get("stream"):
            raise RequestRefused("stream: results are stored whole; leave it out")
        if not chat and body.get(EFFORT) is not None:
            raise RequestRefused(
                f"{EFFORT}: completions have no chat template that could read it; leave it out"
            )
        refuse_templates(body)
        check_tools(body, has_parser=self._settings.tool_parser is not None, chat=chat)
        check_named_tokens(body, self._tokenizers.vocabulary)
        if chat:
            self._chats.read(body)
        prompt, max_tokens = self._fitted(request, body, chat)
        params = sampling_params(
            body, defaults=self._facts.defaults, max_tokens=max_tokens, schema=request.schema
        )
        facts = Facts(model, chat, parsed=to_parse(body, self._settings) if chat else None)
        call = self._call(request, prompt, params, adapter, facts)
        return call, len(prompt.token_ids) + max_tokens * (params.n or 1)

    def probe(self) -> EngineCall:
        """Build a call for the least that the engine must be able to do."""
        if self._facts.classes.labels:
            params = pooling_params()
        elif self._facts.pools:
            params = upstream("vllm", "PoolingParams")(task="embed")
        else:
            params = sampling_params({"temperature": 0}, defaults={}, max_tokens=1, schema=None)
        return EngineCall(f"probe#{next(self._numbers)}", [PROBE_TOKEN], params)

    def _id(self, request: Request) -> str:
        # the same item may come again while its last try still ends
        return f"{request.tag}#{next(self._numbers)}"

    def _call(
        self, request: Request, prompt: Prompt, params: Any, adapter: Adapter | None, facts: Facts
    ) -> EngineCall:
        return EngineCall(
            self._id(request),
            prompt.token_ids,
            params,
            None if adapter is None else adapter.request(),
            PRIORITIES[request.priority],
            facts,
            prompt.rendered,
            prompt.media_bytes,
            adapter=adapter,
        )

    def _adapter(self, model: str) -> Adapter | None:
        if model in self._facts.names:
            return None
        adapter = self._adapters.get(model)
        if adapter is not None:
            if adapter.problem is not None:
                raise RequestRefused(
                    f"model is {model!r}, an adapter that cannot be used: {adapter.problem}"
                )
            return adapter
        known = ", ".join(sorted(self._facts.names | self._adapters.names()))
        raise UnknownModel(f"this worker hosts no model {model!r}; it has {known}")

    # -- length ------------------------------------------------------------------------------------

    def _fitted(self, request: Request, body: dict[str, Any], chat: bool) -> tuple[Prompt, int]:
        """Return the prompt, and how many tokens the answer may have.

        What does not fit is cut as the job says."""
        prompt, asked = self._prompt(body, chat), asked_tokens(body)
        context, length = self._facts.context, len(prompt.token_ids)
        if length + (asked or 1) <= context:
            return prompt, asked or context - length
        if request.on_overflow != "fail" and length < context:
            return prompt, context - length
        if request.on_overflow == "trim":
            # half of the context at most: the rest is for the document
            reserved = min(asked or 1, context // 2)
            return self._trimmed(body, chat, prompt, reserved), reserved
        raise ContextOverflow(
            f"This model's maximum context length is {context} tokens. However, the prompt has "
            f"{length} and max_tokens asks for {asked or 1}; shorten it, or submit with "
            "on_overflow"
        )

    def _trimmed(self, body: dict[str, Any], chat: bool, prompt: Prompt, reserved: int) -> Prompt:
        """Cut the end of the longest text until the prompt fits.

        ``reserved`` tokens are left for the answer."""
        limit = self._facts.context - reserved
        if not chat and not isinstance(body.get("prompt"), str):
            return Prompt(prompt.token_ids[:limit])
        tokenizer = self._tokenizers.own()
        for _ in range(TRIM_ROUNDS):
            excess = len(prompt.token_ids) - limit
            if excess <= 0:
                return prompt
            holder, key = max(_texts(body, chat), key=_length, default=({}, ""))
            text = tokenizer(holder.get(key) or "", add_special_tokens=False).input_ids
            if len(text) <= excess:
                break
            holder[key] = tokenizer.decode(text[: max(0, len(text) - excess - TRIM_MARGIN)])
            prompt = self._prompt(body, chat)
        if len(prompt.token_ids) <= limit:
            return prompt
        raise ContextOverflow(
            f"trimming the longest text does not make the prompt fit {limit} tokens"
        )

    def _prompt(self, body: dict[str, Any], chat: bool) -> Prompt:
        if chat:
            return self._chats.prompt(body)
        return Prompt(self._tokenizers.token_ids(body.get("prompt"), "prompt"))

    # -- embeddings --------------------------------------------------------------------------------

    def _embedding(
        self, request: Request, body: dict[str, Any], model: str, adapter: Adapter | None
    ) -> tuple[EngineCall, int]:
        if not self._facts.pools:
            raise RequestRefused(
                f"{self._model} generates and does not embed: set gpu.engine.runner to 'pooling'"
            )
        if self._facts.classes.labels:
            raise RequestRefused(
                f"{self._model} classifies and does not embed: send items to /classify"
            )
        token_ids = self._tokenizers.token_ids(body.get("input"), "input")
        if len(token_ids) > self._facts.context:
            if request.on_overflow == "fail":
                raise ContextOverflow(
                    f"This model's maximum context length is {self._facts.context} tokens. "
                    f"However, the input has {len(token_ids)}; shorten it, or submit with "
                    "on_overflow"
                )
            token_ids = token_ids[: self._facts.context]
        params = upstream("vllm", "PoolingParams")(task="embed", dimensions=body.get("dimensions"))
        facts = Facts(model, chat=False, base64=body.get("encoding_format") == "base64")
        call = self._call(request, Prompt(token_ids), params, adapter, facts)
        return call, len(token_ids)

    # -- scores and classes ------------------------------------------------------------------------

    def _scoring(
        self, task: Task, request: Request, model: str, adapter: Adapter | None
    ) -> tuple[EngineCall, int]:
        lora = None if adapter is None else adapter.request()
        classes, context = self._facts.classes, self._facts.context
        ask = ask_of(task, request.body, classes)
        call_id, priority = self._id(request), PRIORITIES[request.priority]
        parts = []
        for place, text in enumerate(ask.texts):
            ids, sides = tokens_of(self._tokenizers.own(), text, cut_at=None)
            if len(ids) > context:
                if request.on_overflow == "fail":
                    raise ContextOverflow(
                        f"This model's maximum context length is {context} tokens. However, entry "
                        f"{place} has {len(ids)}; shorten it, or submit with on_overflow"
                    )
                ids, sides = tokens_of(self._tokenizers.own(), text, cut_at=context)
            if not ids:
                raise RequestRefused(f"entry {place} has no token: give a text that is not blank")
            params = pooling_params(ask, sides if classes.reads_sides else ())
            parts.append(EngineCall(f"{call_id}.{place}", ids, params, lora, priority))
        facts = ScoringFacts(ask, model, classes.labels)
        call = EngineCall(
            call_id, [], parts[0].params, lora, priority, facts, parts=parts, adapter=adapter
        )
        return call, occupied(parts)


def _read(body: bytes) -> dict[str, Any]:
    """Read a body, of which a hook of the job may have made anything.

    Raises RequestRefused."""
    try:
        read = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise RequestRefused(f"the body is not JSON: {error}") from error
    if not isinstance(read, dict):
        raise RequestRefused(f"the body is {seen(read)}: give an object")
    return read


def _texts(body: dict[str, Any], chat: bool) -> Iterator[tuple[dict[str, Any], str]]:
    """Yield the texts, each by what holds it and its key there."""
    if not chat:
        yield body, "prompt"
        return
    for message in body["messages"]:
        content = message.get("content")
        if isinstance(content, list):
            yield from ((part, "text") for part in content if "text" in part)
        elif content:
            yield message, "content"


def _length(text: tuple[dict[str, Any], str]) -> int:
    holder, key = text
    return len(holder[key])
