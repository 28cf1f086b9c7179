"""Record traces: run a network of any family, and keep the activations of the requested sites.

Only the requested sites are kept, on the CPU. The attention kernels stay as they are: scores and patterns are computed
a second time from q, k and the mask, for the requested layers and heads (see `qkv.blocks.tap`).

B batch
"""

from collections.abc import Iterable, Iterator, Sequence
from fnmatch import fnmatchcase

from torch import Tensor

from qkv.blocks import Inputs
from qkv.blocks.inputs import as_prompt
from qkv.errors import UsageError
from qkv.inside.edit_tap import Edit, EditTap, check_edits
from qkv.inside.forward import Example, batched, make_inputs
from qkv.inside.sites import MATRIX_SITES, PER_HEAD_SITES, activation_of, check_sites, list_sites
from qkv.inside.tokens import list_tokens
from qkv.inside.trace import LOGITS, Trace
from qkv.models import Config, Network
from qkv.models.runtime import eval_mode
from qkv.text import Tokenizer

DEFAULT_SITES = ("*.resid_pre", "*.resid_post", "*.state", "*pattern", LOGITS)
"""The sites of a trace, as far as the model has them: `state` is that of a recurrent model."""
MAX_TRACE_BYTES = 2 * 1024**3


def trace(
    network: Network,
    ids: Sequence[int] | Inputs,
    target_ids: Sequence[int] | None = None,
    *,
    sites: str | Iterable[str] = DEFAULT_SITES,
    heads: Iterable[int] | None = None,
    tokenizer: Tokenizer | None = None,
    token_type_ids: Sequence[int] | None = None,
    edits: Edit | Iterable[Edit] = (),
    max_bytes: int = MAX_TRACE_BYTES,
) -> Trace:
    """Run the network on one text and record its activations.

    `ids` are the tokens of the text, or `Inputs` of one sequence, which may have payloads. For an encoder-decoder they
    are the source, and `target_ids` are the tokens that the decoder reads, which begin with `decoder_start_token_id`.
    `sites` are glob patterns of site names, and "logits" is the output of the head. `heads` limits the heads of scores
    and patterns. The tokenizer supplies the texts of the tokens. `edits` change activations (see `qkv.inside.edits`); a
    trace records the changed values. A trace larger than `max_bytes` is an error.
    """
    ids = as_prompt(ids)
    example: Example = ids if target_ids is None else (ids, target_ids)
    types = None if token_type_ids is None else [token_type_ids]
    tap = RecordingTap(network.config, sites, heads, max_bytes, edits)
    found = _trace_batch(network, [example], tap, tokenizer, types)[0]
    for problem in [*tap.unapplied(), *tap.unrecorded()]:
        raise UsageError(problem)
    return found


def trace_many(
    network: Network,
    examples: Iterable[Example],
    *,
    sites: str | Iterable[str] = DEFAULT_SITES,
    heads: Iterable[int] | None = None,
    tokenizer: Tokenizer | None = None,
    edits: Edit | Iterable[Edit] = (),
    batch_size: int = 8,
    max_bytes: int = MAX_TRACE_BYTES,
) -> Iterator[Trace]:
    """Yield one trace per example. `batch_size` examples share a forward pass, and only their traces are in memory.

    An example is a list of token ids; for an encoder-decoder, it is a pair of source ids and decoder input ids
    (`encode_examples` makes them from texts). `edits` apply to every example. The traces of one batch may have at most
    `max_bytes`.
    """
    if batch_size < 1:
        raise UsageError(f"batch_size = {batch_size}: must be at least 1")
    sites = [sites] if isinstance(sites, str) else list(sites)
    heads = None if heads is None else list(heads)
    edits = check_edits(network.config, edits)
    unapplied: set[str] | None = None  # the problems of every batch so far
    for batch in batched(examples, batch_size):
        tap = RecordingTap(network.config, sites, heads, max_bytes, edits)
        yield from _trace_batch(network, batch, tap, tokenizer)
        problems = {*tap.unapplied(), *tap.unrecorded()}
        unapplied = problems if unapplied is None else unapplied & problems
    for problem in sorted(unapplied or ()):
        raise UsageError(problem)


class RecordingTap(EditTap):
    """A tap that keeps recorded values on the CPU, and raises an error when they exceed `max_bytes`."""

    def __init__(
        self,
        config: Config,
        sites: str | Iterable[str],
        heads: Iterable[int] | None,
        max_bytes: int,
        edits: Edit | Iterable[Edit] = (),
    ) -> None:
        sites = (sites,) if isinstance(sites, str) else tuple(sites)
        if sites == DEFAULT_SITES:
            known = list_sites(config)
            sites = tuple(site for site in sites if any(fnmatchcase(name, site) for name in known))
        patterns = check_sites(config, sites)
        super().__init__(check_edits(config, edits), [pattern for pattern in patterns if pattern != LOGITS], heads)
        self.patterns = patterns
        self.records_logits = any(fnmatchcase(LOGITS, pattern) for pattern in patterns)
        self.num_bytes, self.max_bytes = 0, max_bytes
        _check_heads(config, self.heads)

    def __call__(self, name: str, value: Tensor) -> Tensor:
        out = super().__call__(name, value)
        if name in self.values:
            self.store(name, out)
        return out

    def unrecorded(self) -> list[str]:
        """The patterns for which nothing was recorded: a part states a site with which it never calls its tap."""
        found = [*self.values, *([LOGITS] if self.records_logits else [])]
        return [
            f"nothing was recorded at {pattern!r}: a part states this site, but its forward pass never calls "
            f"tap({activation_of(pattern)!r}, …); add the call, or remove the site from register_part"
            for pattern in self.patterns
            if not any(fnmatchcase(name, pattern) for name in found)
        ]

    def store(self, name: str, value: Tensor) -> None:
        """Keep a copy of a value, which may be a view of a larger tensor, or the same tensor as at another site."""
        if self.heads is not None and name.endswith(MATRIX_SITES) and value.shape[1] != len(self.heads):
            value = value[:, list(self.heads)]  # a layer whose scores or pattern are edited computes all heads
        self.num_bytes += value.numel() * value.element_size()
        if self.num_bytes > self.max_bytes:
            raise UsageError(
                f"when {name} was recorded, the trace became larger than max_bytes = {self.max_bytes:,}; request "
                "fewer sites or heads, shorten the text, or raise max_bytes"
            )
        value = value.detach()
        self.values[name] = value.clone() if value.device.type == "cpu" else value.cpu()


def _trace_batch(
    network: Network,
    examples: Sequence[Example],
    tap: RecordingTap,
    tokenizer: Tokenizer | None,
    token_type_ids: Sequence[Sequence[int]] | None = None,
) -> list[Trace]:
    inputs = make_inputs(network, examples, token_type_ids)
    with eval_mode(network):
        if tap.records_logits:
            tap.store(LOGITS, network(inputs, tap=tap))
        else:
            network.hidden(inputs, tap=tap)
    types = [None] * len(examples) if token_type_ids is None else [tuple(type_ids) for type_ids in token_type_ids]
    return [
        _split_trace(network.config, example, types[row], row, tap, tokenizer) for row, example in enumerate(examples)
    ]


def _split_trace(
    config: Config,
    example: Example,
    token_type_ids: tuple[int, ...] | None,
    row: int,
    tap: RecordingTap,
    tokenizer: Tokenizer | None,
) -> Trace:
    """Return the trace of one example of a batch, without batch axis and padding."""
    target = None if tokenizer is None else tokenizer.target
    if config.family == "seq2seq":
        source_ids, target_ids = example
        tokens = {"encoder": list_tokens(source_ids, tokenizer), "decoder": list_tokens(target_ids, target)}  # type: ignore[arg-type]
    else:
        tokens = {config.family: list_tokens(example, tokenizer)}  # type: ignore[arg-type]
    trace = Trace({}, tokens, tap.heads, token_type_ids)
    for name in list_sites(config):
        if name in tap.values:
            batch = tap.values[name]
            value = _remove_padding(batch[row], name, trace)
            trace.values[name] = value if len(batch) == 1 else value.clone()
    return trace


def _remove_padding(value: Tensor, name: str, trace: Trace) -> Tensor:
    """Cut the token axes of a value to the length of its text. Padding is on the right."""
    if name == LOGITS and value.dim() == 1:  # one output for the whole text
        return value
    length, activation = len(trace.queries(name)), activation_of(name)
    value = value[:, :length] if activation in PER_HEAD_SITES else value[:length]
    return value[:, :, : len(trace.keys(name))] if activation in MATRIX_SITES else value


def _check_heads(config: Config, heads: Sequence[int] | None) -> None:
    num_heads = min(stack.heads for stack in config.stacks.values())
    for head in heads or ():
        if not 0 <= head < num_heads:
            raise UsageError(f"heads: there is no head {head}; this model has heads 0 … {num_heads - 1}")
