"""What the files of a LoRA adapter say of it, read before an engine has it: its rank, and whether
its weights are whole."""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

CONFIG: Final = "adapter_config.json"
WEIGHTS: Final = "adapter_model.safetensors"
CONFIG_BYTES_MAX: Final = 1024**2
HEADER_BYTES_MAX: Final = 100_000_000  # the format's own limit
# A layer of the text model, by PEFT's names; layers of other parts, such as one that sees, have
# other widths.
LAYER: Final = re.compile(
    r"base_model\.model\.(?:(?:language_model|model)\.)*layers\.(\d{1,6})\.(?:[\w.]+\.)?(\w+)\.lora_([AB])\.weight",
    re.ASCII,
)
TAKE_WIDTH: Final = (
    "q_proj",
    "k_proj",
    "v_proj",
    "gate_proj",
    "up_proj",
)  # their input is as wide as the model
GIVE_WIDTH: Final = ("o_proj", "down_proj")  # their output is


class UnusableAdapter(Exception):
    """Why, in words for an operator."""


class AdapterFacts(NamedTuple):
    """Of one adapter."""

    rank: int  # the highest of its layers
    base: str | None = None  # the model that it was made for, as its makers call it
    widths: frozenset[int] = frozenset()  # of the models that its layers fit
    layers: int = 0  # that such a model has at least


def read_adapter(folder: Path) -> AdapterFacts:
    """Raises UnusableAdapter. Weights of another format are left for vLLM to check."""
    facts = _read_config(folder / CONFIG)
    weights = folder / WEIGHTS
    if not weights.exists():
        return facts
    header = _read_header(weights)
    found = [
        (match, _shape(tensor))
        for name, tensor in header.items()
        if (match := LAYER.fullmatch(name)) is not None
    ]
    widths = frozenset(
        width for match, shape in found if (width := _width(match[2], match[3], shape)) is not None
    )
    return facts._replace(
        widths=widths, layers=max((int(match[1]) + 1 for match, _ in found), default=0)
    )


def misfit(facts: AdapterFacts, text_config: Any) -> str | None:
    """Why it is for another model than the one with this configuration of transformers; None where
    nothing shows that.

    vLLM takes smaller layers than the model's, and what they answer makes no sense.
    """
    width, layers = (
        getattr(text_config, "hidden_size", None),
        getattr(text_config, "num_hidden_layers", None),
    )
    others = sorted(facts.widths - {width})
    if others and type(width) is int:
        return f"it is for a model of width {others[0]}, and this one has {width}"
    if type(layers) is int and facts.layers > layers:
        return f"it has weights for {facts.layers} layers, and this model has {layers}"
    return None


def _read_config(file: Path) -> AdapterFacts:
    try:
        if file.stat().st_size > CONFIG_BYTES_MAX:
            raise UnusableAdapter(
                f"{file} has more than {CONFIG_BYTES_MAX:,} bytes: it is no adapter's"
            )
        config = json.loads(file.read_bytes())
    except OSError as error:
        why = f"{file} cannot be read ({error.strerror}); give the folder that holds it"
        raise UnusableAdapter(why) from error
    except (ValueError, RecursionError) as error:
        raise UnusableAdapter(f"{file} is not JSON: {error}") from error
    kind = config.get("peft_type") if isinstance(config, dict) else None
    if kind != "LORA":
        raise UnusableAdapter(f"{file}: peft_type is {kind!r:.40}; only LORA adapters are served")
    base = config.get("base_model_name_or_path")
    return AdapterFacts(_rank(file, config), base if isinstance(base, str) else None)


def _rank(file: Path, config: Mapping[str, Any]) -> int:
    others = config.get("rank_pattern") or {}
    if not isinstance(others, dict):
        raise UnusableAdapter(
            f"{file}: rank_pattern is {others!r:.40}; it is an object of layers and ranks"
        )
    ranks = [config.get("r"), *others.values()]
    if not all(type(rank) is int and rank > 0 for rank in ranks):
        raise UnusableAdapter(f"{file}: r is {config.get('r')!r:.40}; a rank is a positive integer")
    return int(max(ranks))


def _read_header(file: Path) -> dict[str, Any]:
    """The header of a safetensors file says how long the file is: one that was cut has fewer
    bytes."""
    size = length = 0
    header: Any = None
    try:
        size = file.stat().st_size
        with file.open("rb") as opened:
            (length,) = struct.unpack("<Q", opened.read(8))
            if length <= min(size, HEADER_BYTES_MAX):
                header = json.loads(opened.read(length))
    except OSError as error:
        raise UnusableAdapter(f"{file} cannot be read ({error.strerror})") from error
    except (struct.error, ValueError, RecursionError):
        pass
    if not isinstance(header, dict):
        raise UnusableAdapter(
            f"{file} is no safetensors file, or only the beginning of one; copy it again"
        )
    end = 8 + length + max((_end(tensor) for tensor in header.values()), default=0)
    if end != size:
        raise UnusableAdapter(
            f"{file} has {size:,} bytes, and its header speaks of {end:,}; copy it again"
        )
    return header


def _end(tensor: Any) -> int:
    """Where the bytes of a tensor end; 0 for what is none, as the notes of the file's makers."""
    offsets = tensor.get("data_offsets") if isinstance(tensor, dict) else None
    match offsets:
        case [int(), int(end)]:
            return end
        case _:
            return 0


def _shape(tensor: Any) -> list[int]:
    shape = tensor.get("shape") if isinstance(tensor, dict) else None
    return shape if isinstance(shape, list) and all(type(size) is int for size in shape) else []


def _width(layer: str, part: str, shape: list[int]) -> int | None:
    """How wide a model it is for, as far as this tensor tells: A is rank by input, B is output by
    rank."""
    if len(shape) != 2:
        return None
    if part == "A" and layer in TAKE_WIDTH:
        return shape[1]
    return shape[0] if part == "B" and layer in GIVE_WIDTH else None
