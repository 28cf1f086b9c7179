"""Language modelling: compute the loss of texts, and continue texts.

A text is laid out as in training (`CausalLMObjective`): BOS, its tokens, EOS. A long text is split into consecutive
windows, so that every token is predicted exactly once; the first tokens of a window do not see the window before. In
a chat (a record with `messages` instead of `text`), only the answers of the assistant are evaluated.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch.nn import functional as F

from qkv.data.cache.examples import InMemoryExamples
from qkv.data.encode.chat import EncodeChat
from qkv.data.encode.encoders import EncodeText
from qkv.data.objectives import IGNORE_INDEX
from qkv.data.objectives.causal_lm import CausalLMObjective
from qkv.data.objectives.table import OBJECTIVES
from qkv.data.objectives.windows import WindowObjective
from qkv.data.problems import InvalidRecord, Problems
from qkv.data.records import Record
from qkv.data.stream.random_bits import EpochRng
from qkv.decode import GenerationOptions
from qkv.errors import QkvError
from qkv.models import Config
from qkv.models.runtime.eval_mode import eval_mode
from qkv.tasks import metrics
from qkv.tasks.metrics.text_units import TextUnits
from qkv.tasks.run import text_to_text
from qkv.tasks.run.example_batches import ExampleBatches, batches, max_sequence_length
from qkv.tasks.run.generate import generate_batched, prompt_ids
from qkv.tasks.task import Evaluation, EvaluationOptions, TextModel, select_metrics, select_usable
from qkv.text.chat_template import ASSISTANT
from qkv.train.watch import Sample

run = text_to_text.run
METRICS = OBJECTIVES["causal_lm"].metrics[""]
MAX_WINDOW_TOKENS = 2048  # limits the windows of models with more positions
SAMPLE_TOKENS = 32  # maximum tokens of a sample's prompt, and of its continuation


def available_metrics(config: Config, records: Sequence[Record]) -> tuple[str, ...]:
    """The metrics, the main one first."""
    return METRICS


def evaluate(model: TextModel, records: Sequence[Record], options: EvaluationOptions) -> Evaluation:
    """The mean loss per token in nats, perplexity, and bits per character and per byte of the texts."""
    tokenizer, config = model.tokenizer, model.config
    is_chat = bool(records) and "text" not in records[0].fields and "messages" in records[0].fields
    records, notes = select_usable(records, messages=list) if is_chat else select_usable(records, text=str)
    names = select_metrics(options.metrics, METRICS, METRICS)
    problems = Problems(max_invalid_fraction=1)
    records, examples = encode_records(records, EncodeChat(tokenizer) if is_chat else EncodeText(tokenizer), problems)
    notes += [str(problems.summary())] if problems.num_invalid else []
    adds_bos_eos = bool(config.eos_token_ids) if options.add_bos_eos is None else options.add_bos_eos
    objective = CausalLMObjective(
        examples,
        tokenizer,
        max_length=options.max_length or max_sequence_length(config, MAX_WINDOW_TOKENS),
        loss_mask_field="answer" if is_chat else None,
        add_bos_eos=not is_chat and adds_bos_eos,
    )
    num_windows = objective.num_examples(EpochRng(0))
    if num_windows == 0:
        raise QkvError(
            "the texts are too short: a token is predicted from the one before it; give texts of 2 tokens or more"
        )
    windows = objective.build(np.arange(num_windows), EpochRng(0))
    units = TextUnits(list(map(evaluated_text, records)))
    batched = ExampleBatches(model.network, windows, objective.pad_token_id)
    unit_of_label = label_units(objective, batched, units, EpochRng(0))
    nats, tokens = np.zeros(units.num_units), np.bincount(np.concatenate(unit_of_label), minlength=units.num_units)
    with eval_mode(model.network):
        for chosen in batches(windows.lengths, options.batch_size, options.progress):
            losses = [
                F.cross_entropy(logits, labels, reduction="none").cpu().double()
                for logits, labels in batched.labelled_logits(chosen)
            ]
            np.add.at(nats, np.concatenate([unit_of_label[i] for i in chosen]), torch.cat(losses).numpy())
    scores = loss_scores(nats, tokens, units)
    if objective.counts.split:
        notes.append(f"{objective.counts.split:,} texts were read in windows of {objective.max_lengths[0]:,} tokens")
    samples = sample_continuations(model, records[: options.max_samples])
    selected: dict[str, float] = {name: scores[name] for name in names}
    return Evaluation(selected, samples, names[0], len(records), tuple(notes))


def encode_records(
    records: Sequence[Record], encode: EncodeChat | EncodeText, problems: Problems
) -> tuple[list[Record], InMemoryExamples]:
    """The records that can be encoded and are not empty, and their examples; the others are counted in `problems`."""
    usable, examples = [], []
    problems.num_seen += len(records)
    for record, example in zip(records, encode(list(records)), strict=True):
        if isinstance(example, InvalidRecord):
            problems.skip(example.category, record.location, example.reason)
        elif example["ids"]:
            usable.append(record)
            examples.append(example)
    if not usable:
        reason = problems.summary() if problems.num_invalid else "the texts are empty"
        raise QkvError(f"none of the {len(records):,} records can be evaluated: {reason}; give other texts")
    return usable, InMemoryExamples(examples, encode.fields)


def evaluated_text(record: Record) -> str:
    """The text whose tokens are evaluated: the whole text, or the answers of a chat."""
    if "text" in record.fields:
        return str(record.fields["text"])
    return "".join(message["content"] for message in record.fields["messages"] if message["role"] == ASSISTANT)


def label_units(
    objective: WindowObjective, batched: ExampleBatches, units: TextUnits, rng: EpochRng
) -> list[np.ndarray]:
    """The unit of each label of each window, for the bootstrap."""
    assert batched.labels is not None
    documents, first, lengths = objective.windows.locate(np.arange(len(batched.labels)), rng)
    total = np.bincount(documents, lengths)
    places = [np.flatnonzero(labels != IGNORE_INDEX) for labels in batched.labels]
    return [
        units.find(np.full(len(place), document), np.minimum((start + place) / total[document], 1))
        for place, document, start in zip(places, documents, first, strict=True)
    ]


def loss_scores(nats: np.ndarray, tokens: np.ndarray, units: TextUnits) -> dict[str, metrics.Score]:
    """Loss, perplexity and bits from the loss and the number of tokens of each unit."""
    loss = metrics.ratio_score(nats, tokens)

    def bits_per(sizes: np.ndarray) -> metrics.Score:
        return metrics.Score(len(nats), lambda w: metrics.bits_per_unit(float(w @ nats), float(w @ sizes)))

    return {
        "loss": loss,
        "perplexity": metrics.Score(len(nats), lambda weights: metrics.perplexity(loss.weighted(weights))),
        "bits_per_character": bits_per(units.chars),
        "bits_per_byte": bits_per(units.num_bytes),
    }


def sample_continuations(model: TextModel, records: Sequence[Record]) -> list[Sample]:
    """Samples of continuations: the model continues the beginning of each text, or a chat before its last answer."""
    stack = model.config.stack
    max_tokens = min(SAMPLE_TOKENS, stack.max_positions // 2 - 1) if stack.has_max_positions else SAMPLE_TOKENS
    if max_tokens < 1:
        return []
    made = [make_prompt(model, record, max_tokens) for record in records]
    prompts = [prompt[-max_tokens - 1 :] for prompt, _ in made]
    results = generate_batched(model.network, model.tokenizer, prompts, GenerationOptions(max_tokens=max_tokens), 8)
    return [Sample(text, result.text, "") for (_, text), result in zip(made, results, strict=True)]


def make_prompt(model: TextModel, record: Record, max_tokens: int) -> tuple[list[int], str]:
    """The ids and the text of a prompt: the beginning of a text, or a chat before its last answer."""
    tokenizer = model.tokenizer
    if "text" in record.fields:
        ids = tokenizer.encode(record.fields["text"][: 20 * SAMPLE_TOKENS], add_special_tokens=False)[: 2 * max_tokens]
        text = tokenizer.decode(ids[: (len(ids) + 1) // 2])
        return prompt_ids(tokenizer, model.config, text), text
    messages = record.fields["messages"]
    last = max(i for i, message in enumerate(messages) if message["role"] == ASSISTANT)
    prompt = EncodeChat(tokenizer).template.encode(messages[:last])
    return prompt, "\n".join(f"{message['role']}: {message['content']}" for message in messages[:last])
