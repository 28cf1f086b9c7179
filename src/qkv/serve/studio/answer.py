"""What a model answers: a continuation, a translation, the words for its masks, or a label."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from threading import Lock
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from qkv.api import Model
from qkv.decode import GenerationOptions, generate
from qkv.inside import Edit, EditTap, trace
from qkv.models import Config
from qkv.models.runtime.eval_mode import eval_mode
from qkv.serve.studio.switches import make_edits
from qkv.tasks.run.complete import weights_version
from qkv.tasks.run.generate import limit_new_tokens
from qkv.tasks.run.trace import encode_text

MAX_CONTINUATION = 16
"""The number of tokens with which a decoder continues a text."""
MAX_KEPT_ANSWERS = 32
MAX_SPAN = 30
"""The number of tokens of an answer to a question."""
MAX_OUTPUT = 64
"""The number of tokens that an encoder-decoder writes."""
TITLES = {"lm": "Continuation", "mlm": "Masks filled in", "classify": "Label", "tag": "Tags", "span": "Answer"}


@dataclass(frozen=True)
class StudioAnswer:
    """An answer as text, and the ids of its tokens if they were generated."""

    title: str
    text: str
    ids: tuple[int, ...] = ()


def split_pair(config: Config, text: str) -> str | tuple[str, str]:
    """The text or, for an encoder, the two texts on the sides of a tab."""
    first, tab, second = text.partition("\t")
    is_pair = config.family == "encoder" and tab and "\t" not in second
    return (first, second) if is_pair else text


def read_text(model: Model, text: str) -> tuple[list[int], list[int] | None]:
    """The ids and the token types of a text."""
    return encode_text(model.tokenizer, model.config, split_pair(model.config, text))


class AnswerCache:
    """The latest answers of each model, so that another panel of the same text does not generate them again."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._kept: WeakKeyDictionary[Model, dict[Hashable, StudioAnswer]] = WeakKeyDictionary()

    def find(self, model: Model, text: str, off: tuple[str, ...]) -> StudioAnswer:
        """The answer of a model with some parts switched off, as it is now or was computed before."""
        key = (text, off, weights_version(model.network))
        with self._lock:
            kept = self._kept.setdefault(model, {})
        if key not in kept:
            answer = find_answers(model, [text], make_edits(model.config, off))[0]
            while len(kept) >= MAX_KEPT_ANSWERS:
                kept.pop(next(iter(kept)))
            kept[key] = answer
        return kept[key]


def find_answers(model: Model, texts: Sequence[str], edits: Sequence[Edit] = ()) -> list[StudioAnswer]:
    """The answer to each text, with the edits applied."""
    read = [read_text(model, text) for text in texts]
    if model.config.head.kind == "lm":
        return generate_answers(model, [ids for ids, _ in read], edits)
    if model.config.family == "seq2seq":  # a classifier, whose decoder has nothing to read here
        return [StudioAnswer("", "") for _ in texts]
    answers = []
    for ids, types in read:
        recorded = trace(model.network, ids, sites=["logits"], token_type_ids=types, edits=edits)
        answers.append(answer_from_logits(model, ids, recorded["logits"]))
    return answers


def generate_answers(model: Model, prompts: Sequence[list[int]], edits: Sequence[Edit]) -> list[StudioAnswer]:
    """The greedy outputs of a model that generates text."""
    config = model.config
    is_seq2seq = config.family == "seq2seq"
    longest = 1 if is_seq2seq else max(map(len, prompts))
    title = "Output" if is_seq2seq else TITLES["lm"]
    if config.stack.has_max_positions and longest >= config.stack.max_positions:
        return [StudioAnswer(title, "") for _ in prompts]
    limit = limit_new_tokens(config, MAX_OUTPUT if is_seq2seq else MAX_CONTINUATION, longest)
    options = GenerationOptions(max_tokens=limit, tap=EditTap(edits) if edits else None)
    with eval_mode(model.network):
        results = generate(model.network, prompts, options, model.tokenizer)
    return [StudioAnswer(title, result.text, tuple(result.ids)) for result in results]


def answer_from_logits(model: Model, ids: Sequence[int], logits: Tensor) -> StudioAnswer:
    """The answer of a model that does not generate text."""
    head, tokenizer = model.config.head, model.tokenizer
    title = TITLES.get(head.kind, "")
    if head.kind == "mlm" and tokenizer is not None:
        mask = tokenizer.special_tokens.mask
        best = logits.argmax(-1).tolist()
        filled = [best[position] if token == mask else token for position, token in enumerate(ids)]
        return StudioAnswer(title, tokenizer.decode(filled)) if mask in ids else StudioAnswer(title, "")
    if head.kind == "classify" and head.outputs > 1:
        scaled = logits.float() / head.temperature
        probabilities = scaled.sigmoid() if head.multi_label else scaled.softmax(-1)
        largest, indices = probabilities.topk(min(3, len(probabilities)))
        pairs = zip(largest.tolist(), indices.tolist(), strict=True)
        names = [f"{label_text(head.labels, index)} {probability:.2f}" for probability, index in pairs]
        return StudioAnswer(title, " · ".join(names))
    if head.kind == "tag" and tokenizer is not None:
        special = tokenizer.special_ids
        tags = [label_text(head.labels, i) for i in logits.argmax(-1).tolist()]
        return StudioAnswer(title, " ".join(tag for tag, token in zip(tags, ids, strict=True) if token not in special))
    if head.kind == "span" and tokenizer is not None:
        start, end = best_span(logits, [token in tokenizer.special_ids for token in ids])
        return StudioAnswer(title, tokenizer.decode(ids[start : end + 1]))
    return StudioAnswer(title, "")


def best_span(logits: Tensor, is_special: Sequence[bool]) -> tuple[int, int]:
    """The first and the last token of the most likely answer: logits (T, 2) of starts and ends, no special tokens."""
    outside = torch.tensor(is_special, device=logits.device)[:, None]
    starts, ends = logits.float().masked_fill(outside, float("-inf")).T
    scores = starts[:, None] + ends[None, :]
    allowed = torch.ones_like(scores, dtype=torch.bool).triu().tril(MAX_SPAN - 1)
    best = int(scores.masked_fill(~allowed, float("-inf")).argmax())
    return divmod(best, len(logits))


def label_text(labels: Sequence[str], index: int) -> str:
    """The name of a label; its number if the labels have no names."""
    return labels[index] if labels else f"#{index}"
