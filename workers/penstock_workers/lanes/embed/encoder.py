"""An encoder turns token ids into vectors: the interface, and the real ones behind it.

One is a sentence-transformers model on a CPU or a GPU, the other a cross-encoder or a sequence
classifier, as sentence-transformers' CrossEncoder computes it.

torch, sentence-transformers and numpy are imported when an encoder is made or used, never when this
module is: they start threads, and a worker is forked after its modules are imported.

Texts are tokenised beside the encoder, in one thread, and whatever has gathered while it was busy
goes in one call. One thread, because tokenizers keep their settings for truncation in themselves;
one call for many, because the fast ones spread a list over all cores.
"""

from __future__ import annotations

import asyncio
import importlib.util
from collections.abc import Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol

from penstock_workers.errors import ModelUnusable, PackageMissing
from penstock_workers.lanes.embed.buckets import TokenIds, Vector
from penstock_workers.lanes.embed.settings import EmbedSettings
from penstock_workers.lanes.scoring import Text

MAX_TEXTS_AT_ONCE = 1_024  # of different requests; bounds how long an urgent one waits for its turn
Wanted = tuple[Sequence[Text], "asyncio.Future[list[TokenIds]]"]

PACKAGE = "sentence_transformers"
# for a model whose files name no limit: what the encoders of BERT's family were trained with
DEFAULT_MAX_TOKENS = 512
# What torch says where it has no exception of its own: CPU allocator and cuBLAS, as of torch 2.13.
_OUT_OF_MEMORY = ("can't allocate memory", "out of memory", "CUBLAS_STATUS_ALLOC_FAILED")


class Tokenising:
    """Makes tokens in a thread, for one event loop. Its callers wait, which bounds it."""

    def __init__(self, encoder: Encoder, thread: Executor | None = None) -> None:
        self._encoder = encoder
        self._thread = thread or ThreadPoolExecutor(1, thread_name_prefix="penstock-tokens")
        self._wanted: list[Wanted] = []
        self._working: asyncio.Task[None] | None = None

    async def ids(self, texts: Sequence[Text]) -> list[TokenIds]:
        """Return the token ids of texts.

        Raises whatever the tokenizer raises at them."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[list[TokenIds]] = loop.create_future()
        self._wanted.append((texts, future))
        if self._working is None:
            self._working = loop.create_task(self._work(), name="tokenising")
        return await future

    async def trimmed(self, text: Text) -> TokenIds:
        """Return the tokens of the text's beginning, as many as the encoder takes."""
        return await asyncio.get_running_loop().run_in_executor(
            self._thread, self._encoder.trim, text
        )

    async def close(self) -> None:
        if self._working is not None:
            self._working.cancel()
            await asyncio.gather(self._working, return_exceptions=True)
        for _, future in self._wanted:
            future.cancel()
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def _work(self) -> None:
        try:
            while self._wanted:
                await self._tokenise(self._next_few())
        finally:
            self._working = None

    def _next_few(self) -> list[Wanted]:
        count, texts = 0, 0
        for wanted, _ in self._wanted:
            if count and texts + len(wanted) > MAX_TEXTS_AT_ONCE:
                break
            count, texts = count + 1, texts + len(wanted)
        few, self._wanted = self._wanted[:count], self._wanted[count:]
        return [(wanted, future) for wanted, future in few if not future.done()]

    async def _tokenise(self, few: list[Wanted]) -> None:
        if not few:
            return
        texts = [text for wanted, _ in few for text in wanted]
        try:
            found = await asyncio.get_running_loop().run_in_executor(
                self._thread, self._encoder.tokenise, texts
            )
        except Exception as error:
            await self._one_by_one(few, error)
            return
        except asyncio.CancelledError:
            for _, future in few:
                future.cancel()
            raise
        ids = iter(found)
        for wanted, future in few:
            mine = [next(ids) for _ in wanted]
            if not future.done():
                future.set_result(mine)

    async def _one_by_one(self, few: list[Wanted], error: Exception) -> None:
        """Tokenise texts one by one, so that one that the tokenizer refuses fails alone."""
        if len(few) > 1:
            for one in few:
                await self._tokenise([one])
        elif not few[0][1].done():
            few[0][1].set_exception(error)


class OutOfMemory(Exception):
    """This batch is too large for the memory that is left; a smaller one may not be."""


class NotFinite(Exception):
    """A vector holds what is not a number, which JSON would keep as null."""


class Encoder(Protocol):
    """A model that turns token ids into vectors.

    ``tokenise`` and ``trim`` are called by one thread, ``build`` by a second, ``encode`` by a
    third, at the same time.
    """

    max_tokens: int  # of one text or pair, special tokens included
    dimensions: int  # of a vector; of a model that scores and classifies, its classes
    labels: Sequence[str]  # of its classes, by their numbers; none = it embeds
    vocabulary: int  # token ids are below this
    # trained so that the first part of a vector is a vector, too; None = nothing is said of it
    matryoshka: bool | None
    short_sizes: frozenset[int]  # for which numbers of dimensions; none = for all
    parameters: int  # of the model: with them it is known how long a batch may take
    on_cpu: bool

    def tokenise(self, texts: Sequence[Text]) -> Sequence[TokenIds]:
        """Return the token ids, with special tokens, and as long as the text is.

        Pairs are for models that score and classify."""
        ...

    def trim(self, text: Text) -> TokenIds:
        """Cut to ``max_tokens`` as the model's own tokenizer cuts."""
        ...

    def build(self, ids: Sequence[TokenIds], /) -> Any:
        """Build what ``encode`` takes, while it computes the batch before."""
        ...

    def encode(self, built: Any, /) -> Sequence[Vector]:
        """Compute one vector of float32 for each row.

        Of a model with labels it has its scores above its logits. Raises OutOfMemory, and what else
        the engine raises.
        """
        ...


def check_packages() -> None:
    """Check that sentence-transformers is installed.

    Imports nothing, so that a command line can ask. Raises PackageMissing."""
    if importlib.util.find_spec(PACKAGE) is None:
        raise PackageMissing("embed", PACKAGE.replace("_", "-"), "embed")


class SentenceTransformersEncoder:
    """The model's own tokenizer, forward pass, pooling and normalising.

    It gives what ``SentenceTransformer.encode`` gives."""

    def __init__(self, folder: Path, settings: EmbedSettings) -> None:
        check_packages()
        import torch  # pyright: ignore[reportMissingImports]
        from transformers.utils import logging  # pyright: ignore[reportMissingImports]

        logging.disable_progress_bar()  # it is for a terminal, and a worker writes a log
        if settings.threads is not None:
            torch.set_num_threads(settings.threads)
        try:
            self._model: Any = self._load(
                str(folder),
                device=settings.device,
                local_files_only=True,
                model_kwargs=_dtype(settings, torch),
            )
        except (OSError, ValueError, RuntimeError, ImportError) as error:
            raise ModelUnusable(str(folder), f"{type(error).__name__}: {error}") from error
        self._model.eval()
        self._torch = torch
        self._tokenizer = self._model.tokenizer
        self._prompt = _prompt(self._model, folder)
        self._pad = self._tokenizer.pad_token_id or 0
        self._pad_left = self._tokenizer.padding_side == "left"
        config = self._model.transformers_model.config
        own_limit = self._model.max_seq_length or getattr(
            config, "max_position_embeddings", DEFAULT_MAX_TOKENS
        )
        self.max_tokens: int = settings.max_tokens or own_limit
        self.vocabulary: int = getattr(config, "vocab_size", len(self._tokenizer))
        self.parameters = sum(part.numel() for part in self._model.parameters())
        self.on_cpu = self._model.device.type == "cpu"
        self._learn(folder, settings)

    def _load(self, folder: str, **options: Any) -> Any:
        from sentence_transformers import SentenceTransformer  # pyright: ignore[reportMissingImports]

        return SentenceTransformer(folder, **options)

    def _learn(self, folder: Path, settings: EmbedSettings) -> None:
        """Note what is peculiar to this kind of model."""
        config = self._model.transformers_model.config
        self.labels: Sequence[str] = ()
        self.dimensions: int = self._model.get_embedding_dimension()
        self.short_sizes: frozenset[int] = frozenset(
            getattr(config, "matryoshka_dimensions", None) or ()
        )
        self.matryoshka: bool | None = bool(self.short_sizes) or getattr(
            config, "is_matryoshka", None
        )

    def tokenise(self, texts: Sequence[Text]) -> Sequence[TokenIds]:
        return self._ids(texts, truncation=False)

    def trim(self, text: Text) -> TokenIds:
        return self._ids([text], truncation=True, max_length=self.max_tokens)[0]

    def build(self, ids: Sequence[TokenIds]) -> dict[str, Any]:
        cells, mask = rectangle(ids, pad=self._pad, pad_left=self._pad_left)
        return {"input_ids": self._on_device(cells), "attention_mask": self._on_device(mask)}

    def encode(self, built: dict[str, Any]) -> Sequence[Vector]:
        try:
            return self._computed(built)
        except (RuntimeError, MemoryError) as error:
            if not _is_out_of_memory(error):
                raise
            said = str(error).partition("\n")[0]
        # Here and not above: while the error lives, its frames hold the tensors of the batch that
        # did not fit.
        self._give_memory_back()
        raise OutOfMemory(said)

    def _computed(self, built: dict[str, Any]) -> Sequence[Vector]:
        with self._torch.inference_mode():
            features = dict(built)  # the model adds to it, and what it adds is to go with this call
            vectors = self._forward(features)
            if not bool(self._torch.isfinite(vectors).all()):
                raise NotFinite(
                    "a vector is not finite; float32 may do where a smaller dtype overflows "
                    "(embed.dtype)"
                )
            return [*vectors.to("cpu", self._torch.float32).numpy()]

    def _forward(self, features: dict[str, Any]) -> Any:
        return self._model(features)["sentence_embedding"]

    def _ids(self, texts: Sequence[Text], **options: Any) -> list[TokenIds]:
        import numpy

        whole = [f"{self._prompt}{text}" for text in texts] if self._prompt else list(texts)
        found: list[list[int]] = self._tokenizer(
            whole,
            padding=False,
            return_attention_mask=False,
            return_token_type_ids=False,
            verbose=False,
            **options,
        )["input_ids"]
        return [self._checked(numpy.array(ids, numpy.int32)) for ids in found]

    def _checked(self, ids: Any) -> Any:
        """Check that the model has these token ids.

        A tokenizer may have been given more tokens than its model has: these would read foreign
        memory.
        """
        if len(ids) and ids.max() >= self.vocabulary:
            raise ValueError(
                f"token {ids.max()} is none of the model's, which are 0 to {self.vocabulary - 1}"
            )
        return ids

    def _on_device(self, cells: Any) -> Any:
        """Copy cells to the device.

        A GPU reads this memory by itself, so that no thread waits for the copy."""
        tensor = self._torch.from_numpy(cells)
        device = self._model.device
        if device.type != "cuda":
            return tensor.to(device)
        # a thread begins on the first card, and would take memory there
        with self._torch.cuda.device(device):
            return tensor.pin_memory().to(device, non_blocking=True)

    def _give_memory_back(self) -> None:
        if self._torch.cuda.is_available():
            self._torch.cuda.empty_cache()


def rectangle(ids: Sequence[TokenIds], *, pad: int, pad_left: bool) -> tuple[Any, Any]:
    """Make rows of one length, and say which cells are text.

    They are padded here, as the tokenizer is at work in another thread."""
    import numpy

    lengths = numpy.fromiter(map(len, ids), numpy.int64, len(ids))[:, None]
    longest = int(lengths.max())
    places = numpy.arange(longest)
    is_text = places >= longest - lengths if pad_left else places < lengths
    cells = numpy.full(is_text.shape, pad, numpy.int64)
    cells[is_text] = numpy.concatenate(ids)
    return cells, is_text.astype(numpy.int64)


def _dtype(settings: EmbedSettings, torch: Any) -> dict[str, str]:
    """Choose the type of the weights.

    It is bfloat16 on GPUs that compute it, which takes half the memory and has twice the speed of
    float32, with its range of numbers.
    """
    if settings.dtype is not None:
        return {"dtype": settings.dtype}
    on_cuda = (
        torch.cuda.is_available() if settings.device is None else settings.device.startswith("cuda")
    )
    return (
        {"dtype": "bfloat16"}
        if on_cuda and torch.cuda.is_bf16_supported(including_emulation=False)
        else {}
    )


def _is_out_of_memory(error: BaseException) -> bool:
    return isinstance(error, MemoryError) or any(words in str(error) for words in _OUT_OF_MEMORY)


def _prompt(model: Any, folder: Path) -> str:
    """Return what the model wants before each text, as ``SentenceTransformer.encode`` puts it.

    Raises ModelUnusable."""
    prompt: str = (
        model.prompts.get(model.default_prompt_name) or "" if model.default_prompt_name else ""
    )
    if prompt and not all(getattr(module, "include_prompt", True) for module in model):
        raise ModelUnusable(
            str(folder),
            "its pooling leaves the prompt out, which this lane cannot; take another model",
        )
    return prompt


# as sentence-transformers calls the task; it also loads rerankers that generate
SEQUENCES = "sequence-classification"


class SentenceTransformersClassifier(SentenceTransformersEncoder):
    """A cross-encoder or a sequence classifier.

    A text's vector has two rows: scores or probabilities as the model means them, and its logits.
    Its token ids come with the side of the pair that each belongs to, as two columns.
    """

    def _load(self, folder: str, **options: Any) -> Any:
        from sentence_transformers import CrossEncoder  # pyright: ignore[reportMissingImports]

        return CrossEncoder(folder, **options)

    def _learn(self, folder: Path, settings: EmbedSettings) -> None:
        tasks = [getattr(module, "transformer_task", "another") for module in self._model]
        if tasks != [SEQUENCES] or self._prompt or self._tokenizer.chat_template:
            why = (
                "its files make it a reranker that is asked by a prompt or a chat template; this "
                "lane scores with models whose config.json names a class "
                "…ForSequenceClassification and whose tokenizer joins a pair by itself; vLLM's own "
                "server hosts others (gpu.upstream_url)"
            )
            raise ModelUnusable(str(folder), why)
        config = self._model.config
        self.dimensions = self._model.num_labels
        self.labels = tuple(
            str(config.id2label.get(place, place)) for place in range(self.dimensions)
        )
        self.matryoshka, self.short_sizes = False, frozenset[int]()
        self._has_sides = "token_type_ids" in self._tokenizer.model_input_names
        self._activation = self._activation_for(config.problem_type)

    def _activation_for(self, problem: str | None) -> Any:
        """Choose the function that makes scores or probabilities of logits.

        For one class it is the library's own; for several it makes probabilities, unless the files
        name another.
        """
        layers, own = self._torch.nn, self._model.activation_fn
        if self.dimensions == 1:
            return own
        if problem == "multi_label_classification":
            return layers.Sigmoid()
        return (
            layers.Softmax(dim=-1)
            if isinstance(own, layers.Identity) and problem != "regression"
            else own
        )

    def tokenise(self, texts: Sequence[Text]) -> Sequence[TokenIds]:
        """Tokenise pairs and single texts each in one call: the tokenizer takes no mixture."""
        found: dict[int, TokenIds] = {}
        for kind in (str, tuple):
            places = [place for place, text in enumerate(texts) if isinstance(text, kind)]
            if places:
                found |= zip(
                    places,
                    self._columns([texts[place] for place in places], truncation=False),
                    strict=True,
                )
        return [found[place] for place in range(len(texts))]

    def trim(self, text: Text) -> TokenIds:
        """Cut a text, and of a pair the longer side, as the library cuts."""
        trimmed: TokenIds = self._columns(
            [text], truncation="longest_first", max_length=self.max_tokens
        )[0]
        return trimmed

    def build(self, ids: Sequence[TokenIds]) -> dict[str, Any]:
        import numpy

        rows: list[Any] = [numpy.asarray(row, numpy.int32) for row in ids]
        tokens = [row if row.ndim == 1 else row[:, 0] for row in rows]
        cells, mask = rectangle(tokens, pad=self._pad, pad_left=self._pad_left)
        built = {"input_ids": self._on_device(cells), "attention_mask": self._on_device(mask)}
        if self._has_sides:
            sides: list[Any] = [
                numpy.zeros_like(row) if row.ndim == 1 else row[:, 1] for row in rows
            ]
            built["token_type_ids"] = self._on_device(
                rectangle(sides, pad=0, pad_left=self._pad_left)[0]
            )
        return built

    def _forward(self, features: dict[str, Any]) -> Any:
        logits = self._model(features)["scores"].float()
        return self._torch.stack((self._activation(logits), logits), dim=1)

    def _columns(self, texts: Sequence[Text], **options: Any) -> list[Any]:
        import numpy

        said = self._tokenizer(
            list(texts),
            padding=False,
            return_attention_mask=False,
            return_token_type_ids=True,
            verbose=False,
            **options,
        )
        both = zip(said["input_ids"], said["token_type_ids"], strict=True)
        return [self._checked(numpy.array(columns, numpy.int32).T) for columns in both]


def scores(vector: Vector, *, activated: bool) -> list[float]:
    """Return one number for each class."""
    return [float(number) for number in vector[0 if activated else 1]]
