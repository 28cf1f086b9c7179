"""Language: how likely a text is to a model, and how it goes on.

A text is laid out as in training (`NextToken`): start, its tokens, end; windows follow each other, so that every
token is predicted exactly once. The first tokens of a window know nothing of the one before. Of a chat, a record with
`messages` in the place of `text`, only the answers are judged.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from torch.nn import functional as F

from qkv.data.chat import ChatTemplate, EncodeChat
from qkv.data.draw import Draw
from qkv.data.encode import EncodeText
from qkv.data.examples import MemoryExamples
from qkv.data.objectives import NextToken, Pieces
from qkv.data.problems import BadRecord, Problems
from qkv.data.records import Record
from qkv.decode import Options, Result
from qkv.errors import QkvError
from qkv.models import Config, Network
from qkv.tasks import metrics as measure
from qkv.tasks import text_to_text
from qkv.tasks.layout import Laid, batches, room
from qkv.tasks.task import Evaluation, Progress, Usable, choose, evaluating, tokenizer_of
from qkv.text import Tokenizer
from qkv.train.watch import Sample

METRICS = ("loss", "perplexity", "bits_per_character", "bits_per_byte")
LENGTH = 2048  # of a window, for models that could read more
SHOWN = 32  # tokens of a sample's opening, and of how it goes on


def run(
    network: Network, tokenizer: Tokenizer | None, config: Config, texts: Sequence[str], **options: Any
) -> list[Result]:
    """How the model goes on from each text; options as in `text_to_text.run`."""
    return text_to_text.run(network, tokenizer, config, texts, **options)


def known(config: Config, records: Sequence[Record]) -> tuple[str, ...]:
    """The metrics that can be asked for; first what a model is judged by."""
    return METRICS


def evaluate(
    network: Network,
    tokenizer: Tokenizer | None,
    config: Config,
    records: Sequence[Record],
    *,
    batch: int = 16,
    beam: int = 1,
    progress: Progress | None = None,
    metrics: Sequence[str] = (),
    samples: int = 3,
    length: int = 0,
    framed: bool | None = None,
) -> Evaluation:
    """The mean loss of a token in nats, and what it means: perplexity, bits a character and a byte of the texts.

    `length` is that of a window; 0: as many as the model has positions, at most 2,048. `framed` lays start and end
    tokens around each text; None: where the model ends its texts with one.
    """
    reader = tokenizer_of(tokenizer)
    chats = bool(records) and "text" not in records[0].fields and "messages" in records[0].fields
    usable = Usable.of(records, messages=list) if chats else Usable.of(records, text=str)
    names = choose(metrics, known(config, records), METRICS)
    problems = Problems(max_bad=1)
    encode = EncodeChat(reader) if chats else EncodeText(reader)
    listed, examples = readable(usable.records, encode, problems)
    notes = [*usable.notes, *([str(problems.summary())] if problems.bad else [])]
    objective = NextToken(
        examples,
        reader,
        length=length or room(config, LENGTH),
        trained="answer" if chats else None,
        framed=not chats and (bool(config.end) if framed is None else framed),
    )
    count = objective.count(Draw(0))
    if count == 0:
        raise QkvError("the texts are too short: there is no token that has one before it")
    nats, tokens = loss_of(network, objective.build(np.arange(count), Draw(0)), objective.pad, batch, progress)
    text = "".join(map(learnt_text, listed))
    scores = {
        "loss": nats / tokens,
        "perplexity": measure.perplexity(nats / tokens),
        "bits_per_character": measure.bits(nats, len(text)),
        "bits_per_byte": measure.bits(nats, len(text.encode("utf-8", "surrogatepass"))),
    }
    if objective.tally.split:
        notes.append(f"{objective.tally.split:,} texts were read in windows of {objective.capacity[0]:,} tokens")
    shown = continued(network, reader, config, listed[:samples])
    judged = names[0] if metrics else METRICS[0]
    return Evaluation({name: scores[name] for name in names}, shown, judged, len(listed), tuple(notes))


def readable(
    records: Sequence[Record], encode: EncodeChat | EncodeText, problems: Problems
) -> tuple[list[Record], MemoryExamples]:
    """Records that can be encoded and are not empty, and what they are then; the others go to `problems`."""
    good, examples = [], []
    problems.saw(len(records))
    for record, example in zip(records, encode(list(records)), strict=True):
        if isinstance(example, BadRecord):
            problems.skip(example.kind, record.where, example.reason)
        elif example["ids"]:
            good.append(record)
            examples.append(example)
    if not good:
        raise QkvError(f"none of the {len(records):,} records has text that this model can read")
    return good, MemoryExamples(examples, encode.fields)


def learnt_text(record: Record) -> str:
    """The text whose tokens are judged: all of it, or of a chat the answers."""
    if "text" in record.fields:
        return str(record.fields["text"])
    return "".join(turn["content"] for turn in record.fields["messages"] if turn["role"] == ChatTemplate.answerer)


def loss_of(
    network: Network, pieces: Pieces, pad: int, batch: int, progress: Progress | None = None
) -> tuple[float, int]:
    """The summed loss in nats of all labels, and how many there are."""
    laid = Laid(network, pieces, pad)
    total, count = 0.0, 0
    with evaluating(network):
        for chosen in batches(pieces.lengths, batch, progress):
            for logits, labels in laid.at_labels(chosen):
                total += float(F.cross_entropy(logits, labels, reduction="none").cpu().double().sum())
                count += len(labels)
    return total, count


def continued(network: Network, tokenizer: Tokenizer, config: Config, records: Sequence[Record]) -> list[Sample]:
    """The opening of some texts (or a chat up to its last answer) and how the model goes on; no way is the right."""
    stack = config.stack
    most = min(SHOWN, stack.max_positions // 2 - 1) if stack.limited else SHOWN
    if most < 1:
        return []
    opened = [opening(tokenizer, config, record, most) for record in records]
    prompts = [prompt[-most - 1 :] for prompt, _ in opened]  # the last of it, as much as fits
    results = text_to_text.decoded(network, tokenizer, prompts, Options(max_tokens=most), batch=8)
    return [Sample(source, result.text, "") for (_, source), result in zip(opened, results, strict=True)]


def opening(tokenizer: Tokenizer, config: Config, record: Record, most: int) -> tuple[list[int], str]:
    """What the model is given of a record, as ids and as text."""
    if "text" in record.fields:
        ids = tokenizer.encode(record.fields["text"][: 20 * SHOWN], special=False)[: 2 * most]
        text = tokenizer.decode(ids[: (len(ids) + 1) // 2])
        return text_to_text.prompt_ids(tokenizer, config, text), text
    turns = [(turn["role"], turn["content"]) for turn in record.fields["messages"]]
    last = max(place for place, (role, _) in enumerate(turns) if role == ChatTemplate.answerer)
    prompt = ChatTemplate().prompt(tokenizer, turns[:last])
    return prompt, "\n".join(f"{role}: {said}" for role, said in turns[:last])
