"""A cross-encoder or a sequence classifier on a CPU or a GPU, as sentence-transformers'
CrossEncoder computes it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from penstock_workers.errors import ModelUnusable
from penstock_workers.lanes.embed.encoding.buckets import TokenIds, Vector
from penstock_workers.lanes.embed.encoding.encoder import SentenceTransformersEncoder, rectangle
from penstock_workers.lanes.embed.settings import EmbedSettings
from penstock_workers.lanes.scoring.asks import Text

# as sentence-transformers calls the task; it also loads rerankers that generate
SEQUENCES = "sequence-classification"


class SentenceTransformersClassifier(SentenceTransformersEncoder):
    """A text's vector has two rows: scores or probabilities as the model means them, and its
    logits.

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
        """Of one class the library's own; of several what makes probabilities, unless the files
        name another."""
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
        """Pairs and single texts each in one call: the tokenizer takes no mixture."""
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
        """Of a pair, the longer side is cut: as the library cuts."""
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
    """One number for each class."""
    return [float(number) for number in vector[0 if activated else 1]]
