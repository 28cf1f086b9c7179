"""Images or sounds that a caller gives become parts of a model's input, and the outputs of its head for them.

N images or sounds, V outputs
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from qkv.blocks import Inputs, pool
from qkv.blocks.inputs import PayloadItem, Prompt
from qkv.data.modalities import MODALITIES, describe_front_ends
from qkv.data.objectives.template import SpecialTokenTemplate
from qkv.data.payloads import PayloadFormat
from qkv.data.problems import InvalidRecord
from qkv.errors import UsageError
from qkv.models import Config
from qkv.models.runtime import eval_mode
from qkv.tasks.run.example_batches import batches
from qkv.tasks.table import find_task
from qkv.tasks.text_model import TextModel
from qkv.text import Tokenizer


def find_format(config: Config, modality: str = "") -> PayloadFormat:
    """How a model reads the values of a modality; by default, of the first that it reads."""
    settings = describe_front_ends(config)
    modality = modality or next(iter(settings), "image")
    format = MODALITIES.find(modality).payload
    if format is None or modality not in settings:
        read = ", ".join(settings) or "only texts"
        raise UsageError(f"this model has no front end for the modality {modality!r}; it reads {read}")
    return format.configure(settings[modality])


def make_item(format: PayloadFormat, value: Any, where: str) -> PayloadItem:
    """The part of an input that a value becomes. `where` names the value in an error."""
    try:
        vectors, size = format.load(value)
    except InvalidRecord as invalid:
        raise UsageError(f"{where}: {invalid.reason}") from None
    return PayloadItem(format.kind, torch.from_numpy(vectors), size, format.front_end.length(size))


def make_prompt(tokenizer: Tokenizer, config: Config, values: Sequence[Any], text: str = "", where: str = "") -> Prompt:
    """The input of a model of images or sounds, which is laid out as in training: the values, then the text."""
    format = find_format(config)
    special, writes = tokenizer.special_tokens, config.family == "decoder" and config.head.kind == "lm"
    if writes:  # as in `PayloadLMObjective`
        first, last = special.eos if special.bos is None else special.bos, special.eos if text else None
        prefix, suffix = (() if token is None else (token,) for token in (first, last))
        template = SpecialTokenTemplate(prefix, (), suffix)
    elif config.family == "seq2seq":
        template = SpecialTokenTemplate.for_source(tokenizer)
    else:
        template = SpecialTokenTemplate.from_tokenizer(tokenizer)
    where = where or f"the {next(iter(describe_front_ends(config)))}"
    items = [make_item(format, value, where) for value in values]
    ids = tokenizer.encode(text, add_special_tokens=False) if text else []
    parts: list[Sequence[int] | PayloadItem] = [template.prefix, *items, ids, template.suffix]
    return join_parts(parts, special.pad or 0, share_positions=writes)


def encode_input(tokenizer: Tokenizer, config: Config, value: Any) -> Prompt:
    """What a caller gives to the task of a model of images or sounds, such as a path, or an image and a question."""
    task: Any = find_task(config)
    images, text = task.split_input(value) if hasattr(task, "split_input") else ((value,), "")
    return make_prompt(tokenizer, config, images, text)


def compute_payload_outputs(model: TextModel, values: Sequence[Any], pooling: str | None = None) -> Tensor:
    """The output (N, V) of a head that pools, for images or sounds, which are laid out as in training.

    With `pooling`, the hidden states of any model are pooled instead.
    """
    name = next(iter(describe_front_ends(model.config)))
    network = model.network
    outputs: list[Tensor] = [torch.zeros(0)] * len(values)
    with eval_mode(network):
        for chosen in batches([1] * len(values), model.batch_size, model.progress):
            prompts = [
                make_prompt(model.tokenizer, model.config, (values[i],), where=f"{name} {i + 1}") for i in chosen
            ]
            inputs = Inputs.from_sequences(prompts, always_document_ids=True, device=network.device)
            x, layout = network.hidden(inputs, tap=model.tap)
            found = network.head(x, layout) if pooling is None else pool(x, layout, pooling)[:, 0]
            for i, output in zip(chosen, found, strict=True):
                outputs[i] = output
    return torch.stack(outputs)


def join_parts(
    parts: Sequence[Sequence[int] | PayloadItem], placeholder_id: int = 0, *, share_positions: bool = False
) -> Prompt:
    """A sequence of ids, images and sounds. For an encoder, every placeholder has a position of its own."""
    made = [part if isinstance(part, PayloadItem) else list(part) for part in parts]
    return Prompt(Inputs.from_parts(made, placeholder_id=placeholder_id, share_positions=share_positions))
