"""In a child process: compile what answers must follow with the engine's own backend, and see whether any answer can begin."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any, Final

from penstock_workers.lanes.gpu.engine.upstream import upstream
from penstock_workers.lanes.gpu.requests.line_child import DETAIL_CHARS, bound_memory, serve

PROGRAM: Final = "penstock_workers.lanes.gpu.requests.grammar_child"
CONSTRAINTS: Final = ("json", "regex", "choice", "grammar", "json_object", "structural_tag")


def named(wanted: Mapping[str, Any]) -> str:
    """The field of the request, or of the job."""
    name = next(iter(wanted))
    return (
        "the JSON schema (response_format, or the job's response_schema)"
        if name == "json"
        else f"structured_outputs.{name}"
    )


class _Trial:
    """vLLM's manager of structured outputs, with a config that has what it reads."""

    def __init__(self, model_config: Any, outputs_config: Any) -> None:
        self._model, self._outputs = model_config, outputs_config
        config = SimpleNamespace(
            model_config=model_config,
            structured_outputs_config=outputs_config,
            scheduler_config=SimpleNamespace(max_num_seqs=1),
            parallel_config=SimpleNamespace(distributed_executor_backend=None),
            speculative_config=None,
            num_speculative_tokens=0,
        )
        self._manager = upstream("vllm.v1.structured_output", "StructuredOutputManager")(config)
        self._request = upstream("vllm.v1.structured_output.request", "StructuredOutputRequest")
        self._params = upstream("vllm", "SamplingParams")
        self._constrained = upstream("vllm.sampling_params", "StructuredOutputsParams")

    def problem(self, wanted: dict[str, Any]) -> str | None:
        field = named(wanted)
        try:
            params = self._params(max_tokens=1, structured_outputs=self._constrained(**wanted))
            params.verify(self._model, None, self._outputs, self._manager.tokenizer)
            grammar = self._compiled(params)
        except Exception as error:  # vLLM's, xgrammar's and llguidance's, in whatever class
            return f"{field} cannot be used: {' '.join(str(error).split())}"[:DETAIL_CHARS]
        if not self._can_begin(grammar):
            return f"{field} cannot be used: no answer can satisfy it, as it refers to itself without an end"
        return None

    def _compiled(self, params: Any) -> Any:
        asked = SimpleNamespace(
            request_id="trial",
            sampling_params=params,
            structured_output_request=self._request.from_sampling_params(params),
        )
        self._manager.grammar_init(asked)
        return asked.structured_output_request._grammar.result()  # its public property does not wait

    def _can_begin(self, grammar: Any) -> bool:
        """Whether any token may come first."""
        mask = self._manager.backend.allocate_token_bitmask(1)
        mask.zero_()
        grammar.fill_bitmask(mask, 0)
        return bool(mask.any())


def _made(facts: Any) -> Callable[[Any], str | None]:
    """What answers each constraint: null, or why it cannot be used."""
    trial = _Trial(*facts)
    bound_memory()
    return trial.problem


if __name__ == "__main__":
    serve(_made)
