"""What a person holds: `qkv.load(...)` gives a `Model`, a network with its config and its tokenizer."""

import logging
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from qkv import store
from qkv.blocks import HeadConfig, Tap, pool
from qkv.errors import QkvError, UsageError, nearest
from qkv.models import Config, Decoder, Encoder, Network, Seq2Seq, build, presets
from qkv.text import Tokenizer

log = logging.getLogger("qkv")


def load(
    name: str | Path,
    *,
    device: torch.device | str = "cpu",
    dtype: torch.dtype | None = None,
    head: HeadConfig | None = None,
) -> "Model":
    """A model from a qkv folder, a Hugging Face folder, or a hub id.

    Weights keep the type that they are stored in unless `dtype` says otherwise; `head` puts a fresh head on the body.
    What was ignored or left out is in `.notes`, and logged.
    """
    stored = store.read(name, device=device, dtype=dtype, head=head)
    for note in stored.notes:
        log.warning("%s: %s", name, note)
    return Model(stored.config, stored.network, stored.tokenizer, stored.notes)


def new(
    config: Config | str,
    *,
    tokenizer: Tokenizer | None = None,
    seed: int = 0,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
) -> "Model":
    """A model with fresh weights, from a config or the name of a preset.

    >>> new("bert-tiny").config.family
    'encoder'
    """
    if isinstance(config, str):
        config = presets.find(config)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = build(config, dtype=dtype)
    return Model(config, network.to(device).eval(), tokenizer, [])


class Model:
    """A network with what belongs to it."""

    def __init__(
        self, config: Config, network: Network, tokenizer: Tokenizer | None = None, notes: Iterable[str] = ()
    ) -> None:
        self.config = config
        self.network = network
        self.tokenizer = tokenizer
        self.notes = list(notes)

    def __repr__(self) -> str:
        stack = self.config.stack
        count = sum(p.numel() for p in self.network.parameters())
        size = f"{stack.layers} × {stack.width}, {count:,} parameters"
        return f"<qkv {self.config.family}, {self.config.head.kind} head, {size}>"

    @property
    def device(self) -> torch.device:
        return next(self.network.parameters()).device

    @torch.no_grad()
    def logits(
        self,
        ids: Tensor | Sequence[Sequence[int]],
        source: Tensor | Sequence[Sequence[int]] | None = None,
        mask: Tensor | Sequence[Sequence[int]] | None = None,
        types: Tensor | None = None,
        *,
        tap: Tap | None = None,
    ) -> Tensor:
        """What the head says: (B, T, vocabulary), or (B, classes) for a head that reads whole texts.

        `mask` is 1 for tokens and 0 for padding, on any side: of `source` when there is one, else of `ids`.
        A multiple-choice head takes ids (B, choices, T) and gives (B, choices).
        """
        ids = self._tokens(ids, "ids", self.config.stack.vocab)
        network = self.network
        if isinstance(network, Seq2Seq):
            if source is None:
                raise UsageError("this model has an encoder and a decoder: give source= and the target's ids")
            read = self._tokens(source, "source", self.config.encoder.vocab)  # type: ignore[union-attr]
            out: Tensor = network(read, ids, self._segment(mask, read), tap=tap)
            return out
        if source is not None:
            raise UsageError(
                f"source= is for an encoder and a decoder together; this model is {self.config.family}-only"
            )
        segment = self._segment(mask, ids)
        if ids.dim() == 3 and self.config.head.kind == "choice":
            segment, types = (None if t is None else t.flatten(0, 1) for t in (segment, types))
            return self._run(ids.flatten(0, 1), segment, types, tap).view(ids.shape[:2])
        return self._run(ids, segment, types, tap)

    def _run(self, ids: Tensor, segment: Tensor | None, types: Tensor | None, tap: Tap | None) -> Tensor:
        if isinstance(self.network, Encoder):
            out: Tensor = self.network(ids, segment, types=types, tap=tap)
            return out
        if types is not None:
            raise UsageError("types= is for an encoder with sentence types")
        assert isinstance(self.network, Decoder)
        decoded: Tensor = self.network(ids, segment, tap=tap)
        return decoded

    @torch.no_grad()
    def hidden(
        self, ids: Tensor | Sequence[Sequence[int]], mask: Tensor | Sequence[Sequence[int]] | None = None
    ) -> Tensor:
        """The vectors (B, T, C) that the head reads; of an encoder and decoder, what the encoder makes of a source."""
        if isinstance(self.network, Seq2Seq):
            read = self._tokens(ids, "ids", self.config.encoder.vocab)  # type: ignore[union-attr]
            return self.network.encode(read, self._segment(mask, read)).vectors
        read = self._tokens(ids, "ids", self.config.stack.vocab)
        return self.network.hidden(read, self._segment(mask, read))[0]

    @torch.no_grad()
    def embed(
        self, texts: str | Sequence[str], *, how: Literal["first", "last", "mean"] | None = None, batch: int = 32
    ) -> Tensor:
        """A vector for each text, (N, C); for one text, (C,).

        A model that was made for it knows how; for any other, `how` says which of its vectors stand for a text.
        """
        if self.config.head.kind != "embed" and how is None:
            raise UsageError(
                f"this model has a {self.config.head.kind} head, not one for embeddings; "
                'say which vectors stand for a text: how="mean", "first" or "last"'
            )
        if isinstance(self.network, Seq2Seq):
            raise UsageError("embeddings are for encoder-only and decoder-only models")
        if isinstance(texts, str):
            return self.embed([texts], how=how, batch=batch)[0]
        if self.tokenizer is None:
            raise QkvError("this model has no tokenizer, so it cannot read text; use .hidden(ids)")
        rows = [self.tokenizer.encode(text) for text in texts]
        order = sorted(range(len(rows)), key=lambda i: len(rows[i]))  # like lengths together: little padding
        out: list[Tensor] = [torch.empty(0)] * len(rows)
        for start in range(0, len(order), batch):
            chosen = order[start : start + batch]
            ids, mask = pad_rows([rows[i] for i in chosen], self.config.pad or 0)
            x, place = self.network.hidden(ids.to(self.device), mask.to(self.device))
            vectors = self.network.head(x, place) if how is None else pool(x, place, how)[:, 0]
            for i, vector in zip(chosen, vectors, strict=True):
                out[i] = vector
        return torch.stack(out) if out else torch.empty(0, self.config.stack.width)

    def save(self, folder: str | Path) -> None:
        """Write a qkv model folder."""
        store.write(folder, self.config, self.network, self.tokenizer)

    def export(self, folder: str | Path, format: str = "hf") -> str:
        """Write a folder that other people's code reads; returns the class to load it with.

        `hf` is what transformers, vLLM and other readers of that layout take.
        """
        formats = ("hf",)
        if format not in formats:
            raise UsageError(f"unknown export format {format!r}; {nearest(format, formats)}")
        return store.write(folder, self.config, self.network, self.tokenizer, format)

    def _tokens(self, ids: Tensor | Sequence[Sequence[int]], name: str, vocab: int) -> Tensor:
        """Ids as a tensor on the model's device, checked: an id out of range is an error here, not a crash later."""
        try:
            tensor = torch.as_tensor(ids)
        except (ValueError, TypeError) as error:
            raise UsageError(f"{name}: rows of unequal length need padding and a mask ({error})") from error
        if tensor.dim() < 2 or tensor.dtype.is_floating_point or tensor.dtype == torch.bool:
            raise UsageError(
                f"{name}: expected whole numbers of shape (rows, tokens), not {tuple(tensor.shape)} {tensor.dtype}"
            )
        if tensor.numel() and not 0 <= int(tensor.min()) <= int(tensor.max()) < vocab:
            bad = int(tensor.max()) if int(tensor.max()) >= vocab else int(tensor.min())
            raise UsageError(f"{name}: token id {bad} is outside this model's vocabulary of {vocab} (0 … {vocab - 1})")
        return tensor.to(self.device, torch.long)

    def _segment(self, mask: Tensor | Sequence[Sequence[int]] | None, ids: Tensor) -> Tensor | None:
        if mask is None:
            return None
        segment = torch.as_tensor(mask).to(self.device, torch.long)
        if segment.shape != ids.shape:
            raise UsageError(f"mask: shape {tuple(segment.shape)} does not match its tokens' {tuple(ids.shape)}")
        return segment


def pad_rows(rows: Sequence[Sequence[int]], pad: int) -> tuple[Tensor, Tensor]:
    """Rows of unequal length as ids (B, T), padded on the right, and their mask."""
    longest = max((len(row) for row in rows), default=0)
    ids = torch.full((len(rows), longest), pad, dtype=torch.long)
    mask = torch.zeros(len(rows), longest, dtype=torch.long)
    for i, row in enumerate(rows):
        ids[i, : len(row)] = torch.as_tensor(row, dtype=torch.long)
        mask[i, : len(row)] = 1
    return ids, mask
