"""Checks of the parts against each other: tokenizer and vocabulary, tied weights, source, KV cache."""

from dataclasses import replace

import torch

from qkv.blocks import Inputs
from qkv.blocks.inputs import PayloadItem
from qkv.inside.doctor.finding import Finding, failed, passed, skipped, warned
from qkv.inside.doctor.leaks import MAX_DIFFERENCE, document_lengths, random_source, relative_change
from qkv.inside.doctor.subject import Subject, hidden_states, project_tokens, random_ids, token_outputs
from qkv.models import Network

MAX_UNKNOWN_FRACTION = 0.05
"""A larger fraction of unknown tokens in the data is worth a warning."""
EXAMPLE_SIZES = ((2, 2), (8, 1), (16, 16), (64, 1), (4096, 1))
"""The first of these sizes that gives a placeholder is the size of a front end's example."""
MIN_SOURCE_EFFECT = 1e-6
"""If another source changes the outputs by less than this (relative to their standard deviation), it is ignored."""


def check_tokenizer(subject: Subject) -> Finding:
    """Every id of the tokenizer needs a row in the embedding, and special ids must agree with the config."""
    tokenizer, config = subject.tokenizer, subject.config
    if tokenizer is None:
        return skipped("the model has no tokenizer")
    sides = {"the embedding": (tokenizer.target, embedding_rows(subject.network))}
    if subject.network.has_source:
        sides["the source embedding"] = (tokenizer, subject.network.embeddings["encoder"].token.num_embeddings)
    for where, (side, rows) in sides.items():
        if side.vocab_size > rows:
            return failed(
                f"the tokenizer has {side.vocab_size:,} ids, but {where} has only {rows:,} rows",
                "texts with the last ids crash the model; use the tokenizer that the model was trained with, or "
                f"raise vocab_size to {side.vocab_size}",
                tokenizer=side.vocab_size,
                rows=rows,
            )
    special = tokenizer.target.special_tokens
    for role, ours, theirs in (
        ("padding token", config.pad_token_id, special.pad),
        ("end token", config.eos_token_ids[0] if config.eos_token_ids else None, special.eos),
    ):
        if ours is not None and theirs is not None and ours != theirs and theirs not in config.eos_token_ids:
            return warned(
                f"the {role} is {ours} in the config but {theirs} in the tokenizer",
                "generation may not stop, or padding may be read as text; make the two agree",
            )
    unknown = unknown_fraction(subject)
    if unknown > MAX_UNKNOWN_FRACTION:
        return warned(
            f"{unknown:.0%} of the tokens of the data are unknown to the tokenizer",
            "train the tokenizer on this data, raise tokenizer.vocab_size, or choose byte-bpe, which knows every text",
            unknown=unknown,
        )
    rows = embedding_rows(subject.network)
    return passed(f"{tokenizer.target.vocab_size:,} ids, {rows:,} rows in the embedding", unknown=unknown)


def embedding_rows(network: Network) -> int:
    """The number of rows of the embedding under the head."""
    return network.output_embedding.token.num_embeddings


def unknown_fraction(subject: Subject) -> float:
    """The fraction of the batch's tokens that are the unknown token; 0 for random tokens."""
    assert subject.tokenizer is not None
    unknown = subject.tokenizer.target.special_tokens.unk
    if unknown is None or subject.has_random_batch:
        return 0.0
    inputs = subject.batch.inputs
    assert inputs.document_ids is not None
    return float((inputs.ids[inputs.document_ids != 0] == unknown).float().mean())


def check_tied(subject: Subject) -> Finding:
    """Weights that the config ties must be one tensor, not two that are equal at first."""
    network, config = subject.network, subject.config
    embedding, wrong = network.output_embedding.token.weight, []
    if config.head.tied and network.head.out is not None and network.head.out.weight is not embedding:
        wrong.append("the output matrix of the head and the token embedding")
    if network.has_source:
        is_shared = network.embeddings["encoder"].token.weight is embedding
        if config.share_embeddings and not is_shared:
            wrong.append("the embeddings of source and target")
    if wrong:
        return failed(
            f"{' and '.join(wrong)} are two tensors, but the config ties them",
            "they would drift apart in training, and saving keeps only one; assign the same parameter to both "
            "(head.out.weight = embedding.token.weight)",
        )
    tied = [text for text, is_tied in (("head", config.head.tied), ("source", config.share_embeddings)) if is_tied]
    return passed(f"tied to the embedding: {', '.join(tied)}" if tied else "this model ties no weights")


def check_source(subject: Subject) -> Finding:
    """The output must depend on the source or, without a source, on other tokens of the text."""
    network, batch = subject.copy(torch.float64), subject.batch
    what = "source" if network.has_source else "first token"
    with torch.no_grad():
        if network.has_source:
            before = hidden_states(network, batch)
            source = batch.inputs.source
            assert source is not None
            other = replace(source, ids=(source.ids + 1) % network.stacks["encoder"].config.vocab_size)
            after = hidden_states(network, replace(batch, inputs=replace(batch.inputs, source=other)))
        else:
            length, vocab_size = document_lengths(subject)[1], subject.config.stack.vocab_size
            if length < 2 or vocab_size < 2:
                return skipped("the model has only one position, or no two tokens")
            ids = random_ids(vocab_size, 2, length)
            changed = ids.clone()
            changed[:, 0] = (changed[:, 0] + 1) % vocab_size
            before, after = (token_outputs(network, Inputs(each))[:, 1:2] for each in (ids, changed))
    effect = relative_change(before, after)
    if effect < MIN_SOURCE_EFFECT:
        part = "cross-attention" if network.has_source else "attention"
        return failed(
            f"another {what} changes the outputs by only {effect:.1g} standard deviations",
            f"the model ignores it; check the {part}: its mask, its output projection, and that its result is added "
            "to the residual stream",
            effect=effect,
        )
    return passed(f"another {what} changes the outputs by up to {effect:.2g} standard deviations", effect=effect)


def check_payload(subject: Subject) -> Finding:
    """The output must depend on what each front end reads."""
    config, network = subject.config, subject.copy(torch.float64)
    if not config.front_ends:
        return skipped("the model has no front end")
    effects = {}
    for front_end in config.front_ends:
        sizes = EXAMPLE_SIZES if front_end.example_size is None else (front_end.example_size,)
        size = next((size for size in sizes if front_end.length(size)), None)
        if size is None:
            return skipped(f"the front end {front_end.kind!r} takes no input of the sizes that were tried")
        generator, outputs = torch.Generator().manual_seed(0), []
        for _ in range(2):
            values = torch.rand(size[0] * size[1], front_end.features, generator=generator, dtype=torch.float64)
            values *= front_end.max_value
            inputs = Inputs.from_parts([PayloadItem(front_end.kind, values, size, front_end.length(size)), [0]])
            inputs = inputs.to(subject.device)
            with torch.no_grad():
                outputs.append(token_outputs(network, replace(inputs, source=inputs if network.has_source else None)))
        effects[front_end.kind] = relative_change(*(output[:, -1:] for output in outputs))
    kind = min(effects, key=lambda name: effects[name])
    if effects[kind] < MIN_SOURCE_EFFECT:
        return failed(
            f"another payload {kind!r} changes the outputs by only {effects[kind]:.1g} standard deviations",
            "the model ignores it; check that the front end reads `payload.values` and returns a vector for each "
            "placeholder",
            **effects,
        )
    return passed(f"another payload changes the outputs by up to {effects[kind]:.2g} standard deviations", **effects)


def check_cache(subject: Subject) -> Finding:
    """Decoding with a KV cache must give the same outputs as one forward pass without a cache."""
    network, (_, length) = subject.copy(torch.float64), document_lengths(subject)
    if not network.is_causal:
        return skipped("an encoder has no KV cache")
    ids, source = random_ids(subject.config.stack.vocab_size, 2, length), random_source(network, 2, length)
    with torch.no_grad():
        full = token_outputs(network, Inputs(ids, source=source))
        cache = network.new_cache(2, length)
        memory = None if source is None else network.build_cross_cache(network.encode(source))
        chunks = ids.split([length - length // 2, *[1] * (length // 2)], dim=1)  # a prefill, then single tokens
        steps = [network.hidden(chunk, memory=memory, cache=cache)[0] for chunk in chunks]
        cached = project_tokens(network, torch.cat(steps, dim=1))
    change = relative_change(full, cached)
    if change > MAX_DIFFERENCE:
        return failed(
            f"decoding step by step changes the outputs by {change:.2g} standard deviations",
            "generated text differs from what was trained; check the positions and the mask of cached tokens",
            change=change,
        )
    return passed(f"a prefill and single steps give the same outputs (within {change:.1g})", change=change)
