"""Language: how likely a text is to a model, and how it goes on.

A text is laid out as in training (`NextToken`): start, its tokens, end; windows follow each other, so that every
token is predicted exactly once. The first tokens of a window know nothing of the one before. Of a chat, a record with
`messages` in the place of `text`, only the answers are judged.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from torch.nn import functional as F

from qkv.data.cache.examples import InMemoryExamples
from qkv.data.encode.chat import ChatTemplate, EncodeChat
from qkv.data.encode.encoders import EncodeText
from qkv.data.objectives import CausalLM, FlatExamples
from qkv.data.problems import InvalidRecord, Problems
from qkv.data.records import Record
from qkv.data.stream.random_bits import EpochRng
from qkv.decode import GenerationOptions, GenerationResult
from qkv.errors import QkvError
from qkv.models import Config, Network
from qkv.tasks import metrics as measure
from qkv.tasks.run import text_to_text
from qkv.tasks.run.example_batches import ExampleBatches, batches, max_sequence_length
from qkv.tasks.task import Evaluation, ProgressCallback, UsableRecords, evaluating, require_tokenizer, select_metrics
from qkv.text import Tokenizer
from qkv.train.watch import Sample

METRICS = ("loss", "perplexity", "bits_per_character", "bits_per_byte")
MAX_WINDOW_TOKENS = 2048  # of a window, for models that could read more
SAMPLE_TOKENS = 32  # tokens of a sample's opening, and of how it goes on


def run(
    network: Network, tokenizer: Tokenizer | None, config: Config, texts: Sequence[str], **options: Any
) -> list[GenerationResult]:
    """How the model goes on from each text; options as in `text_to_text.run`."""
    return text_to_text.run(network, tokenizer, config, texts, **options)


def available_metrics(config: Config, records: Sequence[Record]) -> tuple[str, ...]:
    """The metrics that can be asked for; first what a model is judged by."""
    return METRICS


def evaluate(
    network: Network,
    tokenizer: Tokenizer | None,
    config: Config,
    records: Sequence[Record],
    *,
    batch_size: int = 16,
    beam: int = 1,
    progress: ProgressCallback | None = None,
    metrics: Sequence[str] = (),
    max_samples: int = 3,
    max_length: int = 0,
    add_bos_eos: bool | None = None,
) -> Evaluation:
    """The mean loss of a token in nats, and what it means: perplexity, bits a character and a byte of the texts.

    `length` is that of a window; 0: as many as the model has positions, at most 2,048. `framed` lays start and end
    tokens around each text; None: where the model ends its texts with one.
    """
    reader = require_tokenizer(tokenizer)
    chats = bool(records) and "text" not in records[0].fields and "messages" in records[0].fields
    usable = UsableRecords.select(records, messages=list) if chats else UsableRecords.select(records, text=str)
    names = select_metrics(metrics, available_metrics(config, records), METRICS)
    problems = Problems(max_invalid_fraction=1)
    encode = EncodeChat(reader) if chats else EncodeText(reader)
    listed, examples = encode_records(usable.records, encode, problems)
    notes = [*usable.notes, *([str(problems.summary())] if problems.num_invalid else [])]
    objective = CausalLM(
        examples,
        reader,
        max_length=max_length or max_sequence_length(config, MAX_WINDOW_TOKENS),
        loss_mask_field="answer" if chats else None,
        add_bos_eos=not chats and (bool(config.eos_token_ids) if add_bos_eos is None else add_bos_eos),
    )
    count = objective.num_examples(EpochRng(0))
    if count == 0:
        raise QkvError("the texts are too short: there is no token that has one before it")
    nats, tokens = total_loss(
        network, objective.build(np.arange(count), EpochRng(0)), objective.pad_token_id, batch_size, progress
    )
    text = "".join(map(evaluated_text, listed))
    scores = {
        "loss": nats / tokens,
        "perplexity": measure.perplexity(nats / tokens),
        "bits_per_character": measure.bits_per_unit(nats, len(text)),
        "bits_per_byte": measure.bits_per_unit(nats, len(text.encode("utf-8", "surrogatepass"))),
    }
    if objective.tally.split:
        notes.append(f"{objective.tally.split:,} texts were read in windows of {objective.capacity[0]:,} tokens")
    shown = sample_continuations(network, reader, config, listed[:max_samples])
    judged = names[0] if metrics else METRICS[0]
    return Evaluation({name: scores[name] for name in names}, shown, judged, len(listed), tuple(notes))


def encode_records(
    records: Sequence[Record], encode: EncodeChat | EncodeText, problems: Problems
) -> tuple[list[Record], InMemoryExamples]:
    """Records that can be encoded and are not empty, and what they are then; the others go to `problems`."""
    good, examples = [], []
    problems.num_seen += len(records)
    for record, example in zip(records, encode(list(records)), strict=True):
        if isinstance(example, InvalidRecord):
            problems.skip(example.category, record.location, example.reason)
        elif example["ids"]:
            good.append(record)
            examples.append(example)
    if not good:
        raise QkvError(f"none of the {len(records):,} records has text that this model can read")
    return good, InMemoryExamples(examples, encode.fields)


def evaluated_text(record: Record) -> str:
    """The text whose tokens are judged: all of it, or of a chat the answers."""
    if "text" in record.fields:
        return str(record.fields["text"])
    return "".join(turn["content"] for turn in record.fields["messages"] if turn["role"] == ChatTemplate.assistant_role)


def total_loss(
    network: Network, pieces: FlatExamples, pad_token_id: int, batch_size: int, progress: ProgressCallback | None = None
) -> tuple[float, int]:
    """The summed loss in nats of all labels, and how many there are."""
    laid = ExampleBatches(network, pieces, pad_token_id)
    total, count = 0.0, 0
    with evaluating(network):
        for chosen in batches(pieces.lengths, batch_size, progress):
            for logits, labels in laid.label_logits(chosen):
                total += float(F.cross_entropy(logits, labels, reduction="none").cpu().double().sum())
                count += len(labels)
    return total, count


def sample_continuations(
    network: Network, tokenizer: Tokenizer, config: Config, records: Sequence[Record]
) -> list[Sample]:
    """The opening of some texts (or a chat up to its last answer) and how the model goes on; no way is the right."""
    stack = config.stack
    most = min(SAMPLE_TOKENS, stack.max_positions // 2 - 1) if stack.has_max_positions else SAMPLE_TOKENS
    if most < 1:
        return []
    opened = [make_prompt(tokenizer, config, record, most) for record in records]
    prompts = [prompt[-most - 1 :] for prompt, _ in opened]  # the last of it, as much as fits
    results = text_to_text.generate_batched(
        network, tokenizer, prompts, GenerationOptions(max_tokens=most), batch_size=8
    )
    return [Sample(source, result.text, "") for (_, source), result in zip(opened, results, strict=True)]


def make_prompt(tokenizer: Tokenizer, config: Config, record: Record, max_tokens: int) -> tuple[list[int], str]:
    """What the model is given of a record, as ids and as text."""
    if "text" in record.fields:
        ids = tokenizer.encode(record.fields["text"][: 20 * SAMPLE_TOKENS], add_special_tokens=False)[: 2 * max_tokens]
        text = tokenizer.decode(ids[: (len(ids) + 1) // 2])
        return text_to_text.prompt_ids(tokenizer, config, text), text
    turns = [(turn["role"], turn["content"]) for turn in record.fields["messages"]]
    last = max(place for place, (role, _) in enumerate(turns) if role == ChatTemplate.assistant_role)
    prompt = ChatTemplate().encode_prompt(tokenizer, turns[:last])
    return prompt, "\n".join(f"{role}: {said}" for role, said in turns[:last])
