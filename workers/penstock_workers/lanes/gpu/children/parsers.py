"""Takes apart what a model thinks, which tools it calls, and what it says.

vLLM's own parsers do that, in a child process."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import pickle
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any, Final

import orjson
from msgspec import Struct, convert

from penstock_workers.errors import BadEngineSettings
from penstock_workers.lanes.gpu.children.grammar_child import CONSTRAINTS
from penstock_workers.lanes.gpu.children.line_child import LineChild, NoChild
from penstock_workers.lanes.gpu.children.parser_child import PROGRAM, PROTOCOL, ParserFacts
from penstock_workers.lanes.gpu.engine.engines import EngineCall, RequestRefused, upstream, version
from penstock_workers.lanes.gpu.settings import GpuSettings

log = logging.getLogger(__name__)

READ_S: Final = 10.0  # one answer; a usual one takes milliseconds
TRIES: Final = 2  # a child can die for another reason
KEPT: Final = 1_000  # of what requests with the same tools need of the engine
# the type of the models whose chats vLLM's server renders and reads in a way of its own
_HARMONY: Final = "gpt_oss"
_REGISTRIES: Final = {
    "reasoning_parser": ("vllm.reasoning", "ReasoningParserManager"),
    "tool_parser": ("vllm.tool_parsers", "ToolParserManager"),
}


class Said(Struct, frozen=True):
    """One answer, taken apart."""

    reasoning: str | None
    content: str | None
    tool_calls: list[dict[str, Any]]  # as OpenAI has them
    reasoning_tokens: int

    @property
    def is_empty(self) -> bool:
        return not self.content and not self.tool_calls


class Unreadable(Exception):
    """The parsers could not read an answer, or what is to be asked for."""


def check_parsers(settings: GpuSettings) -> None:
    """Check the names of the parsers before minutes of loading.

    Raises BadEngineSettings for names that the installed vLLM does not have."""
    for setting, (module, manager) in _REGISTRIES.items():
        name: str | None = getattr(settings, setting)
        if name is None:
            continue
        _require(module, manager, setting)
        _require("vllm.parser", "ParserManager", setting)
        _require(PROTOCOL, "ChatCompletionRequest", setting)
        known = upstream(module, manager).list_registered()
        if name not in known:
            raise BadEngineSettings(
                f"gpu.{setting} = {name!r}: this vLLM ({version()}) has {', '.join(known)}; give "
                "one of these"
            )


def _require(module: str, name: str, setting: str) -> None:
    try:
        getattr(import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise BadEngineSettings(
            f"gpu.{setting}: the vLLM that is installed here has no {module}.{name}, which parses "
            "answers; install 0.32 or newer, or use the sidecar: a vLLM server with the parser "
            "beside the worker (gpu.upstream_url)"
        ) from error


class AnswerParsers:
    """Takes answers apart, on one event loop. Does nothing where the settings name no parser."""

    def __init__(self, settings: GpuSettings) -> None:
        self._reasoning, self._tool = settings.reasoning_parser, settings.tool_parser
        self._facts = b""
        self._needs: OrderedDict[bytes, Mapping[str, Any]] = OrderedDict()
        self._one_at_a_time = asyncio.Lock()
        self._child: LineChild | None = None
        self._asking: set[asyncio.Task[Mapping[str, Any]]] = set()  # bounded by the runner's slots
        self._closed = False

    @property
    def names(self) -> str:
        """The names of the parsers, for people."""
        given = (("gpu.reasoning_parser", self._reasoning), ("gpu.tool_parser", self._tool))
        return " and ".join(f"{setting} {name!r}" for setting, name in given if name is not None)

    async def start(self, config: Any) -> None:
        """Start the parsers; ``config`` is the engine's VllmConfig.

        Raises BadEngineSettings where the parsers cannot be used with this model."""
        if self._reasoning is None and self._tool is None:
            return
        model_config = config.model_config
        if getattr(model_config.hf_config, "model_type", "") == _HARMONY:
            raise BadEngineSettings(
                f"{self.names}: chats of gpt-oss are rendered and read by vLLM's server alone; use "
                "the sidecar: a vLLM server beside the worker (gpu.upstream_url)"
            )
        self._facts = pickle.dumps(ParserFacts(model_config, self._reasoning, self._tool))
        async with self._one_at_a_time:
            try:
                self._child = await LineChild.start(PROGRAM, self._facts)
            except NoChild as error:
                raise BadEngineSettings(
                    f"{self.names} cannot be used with this model: {error}"
                ) from error

    async def ask_for(self, call: EngineCall) -> None:
        """Change the call's parameters to what the parsers need of the engine.

        Raises RequestRefused, Unreadable."""
        request = call.facts.parsed
        if request is None:
            return
        asked = request | {"structured_outputs": _constraint(call.params)}
        # of no consequence here, so that documents with the same tools share one answer
        asked["messages"] = []
        line = orjson.dumps({"request": asked}, option=orjson.OPT_SORT_KEYS)
        key = hashlib.sha256(line).digest()
        needs = self._needs.get(key)
        if needs is None:
            needs = await self._answer(line)
            self._keep(key, needs)
        self._needs.move_to_end(key)
        if "problem" in needs:
            raise RequestRefused(
                f"tools, tool_choice: {self.names} refuses them: {needs['problem']}"
            )
        call.params.skip_special_tokens = needs["skip_special_tokens"]
        if needs["constraint"] is not None:
            outputs = upstream("vllm.sampling_params", "StructuredOutputsParams")
            call.params.structured_outputs = outputs(**needs["constraint"])

    async def read(self, call: EngineCall, output: Any) -> Sequence[Said] | None:
        """Return what each of the answers says; None where they are not to be taken apart.

        Raises Unreadable."""
        if call.facts.parsed is None:
            return None
        answers = [{"text": one.text, "token_ids": list(one.token_ids)} for one in output.outputs]
        asked = {"request": call.facts.parsed, "prompt": call.token_ids, "answers": answers}
        answer = await self._answer(orjson.dumps(asked))
        if "problem" in answer:
            raise Unreadable(f"{self.names} cannot read the answer: {answer['problem']}")
        return convert(answer["read"], list[Said])

    async def close(self) -> None:
        self._closed = True
        async with self._one_at_a_time:
            child, self._child = self._child, None
            if child is not None:
                child.kill()
                await child.gone()

    async def _answer(self, line: bytes) -> Mapping[str, Any]:
        """Return the child's answer.

        An item that is cancelled leaves its question to be answered. Raises Unreadable."""
        asking = asyncio.create_task(self._ask_in_turn(line), name="answer parser")
        self._asking.add(asking)
        asking.add_done_callback(self._asked)
        return await asyncio.shield(asking)

    def _asked(self, asking: asyncio.Task[Mapping[str, Any]]) -> None:
        self._asking.discard(asking)
        if not asking.cancelled():
            asking.exception()  # raised where the item still waits

    async def _ask_in_turn(self, line: bytes) -> Mapping[str, Any]:
        async with self._one_at_a_time:
            for _ in range(TRIES):
                if self._closed:
                    raise Unreadable("the worker ends")
                try:
                    return await self._ask(line)
                except NoChild as error:
                    raise Unreadable(
                        f"the process of {self.names} does not start: {error}"
                    ) from error
                except TimeoutError:
                    self._end_child()
                    raise Unreadable(f"{self.names} takes longer than {READ_S:g} s") from None
                # it is gone, or its answer is longer than a line may be
                except (EOFError, OSError, ValueError):
                    self._end_child()
            raise Unreadable(f"{self.names} ends the process that it runs in")

    async def _ask(self, line: bytes) -> Mapping[str, Any]:
        """Ask the child, and start one where the last one ended."""
        if self._child is None:
            self._child = await LineChild.start(PROGRAM, self._facts)
        answer: Mapping[str, Any] = await self._child.ask(line, READ_S)
        return answer

    def _end_child(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            log.warning("the process of %s is ended; the next answer begins another", self.names)
            child.kill()

    def _keep(self, key: bytes, needs: Mapping[str, Any]) -> None:
        self._needs[key] = needs
        if len(self._needs) > KEPT:
            self._needs.popitem(last=False)


def _constraint(params: Any) -> dict[str, Any] | None:
    asked = getattr(params, "structured_outputs", None)
    if asked is None:
        return None
    return {
        name: value for name in CONSTRAINTS if (value := getattr(asked, name, None)) is not None
    }
