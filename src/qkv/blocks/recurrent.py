"""Recurrent stacks, the baseline that Transformers replaced: RNN (Elman 1990), GRU (Cho et al. 2014), LSTM (1997).

    RNN    h' = tanh(W x + U h)
    GRU    h' = (1 − z) n + z h          z, r = σ(…),  n = tanh(W x + r · U h)
    LSTM   c' = f c + i g,  h' = o tanh(c')          i, f, o = σ(…),  g = tanh(W x + U h)

A stack takes and returns vectors with a layout, as `Stack` does, so the models, the training and the decoding around it
are the same. An encoder reads each document in both directions, with C/2 numbers per direction. A decoder reads it from
left to right. Between two tokens only the state is kept, so its decoding cache does not grow with the text.

The decoder of an encoder-decoder starts from the state tanh(W s), where s are the last forward and the last backward
state of the encoder. With additive attention (Bahdanau et al. 2015), its first layer also reads a context c:

    eⱼ = vᵀ tanh(W hₜ₋₁ + U sⱼ)        α = softmax(e)        c = Σ αⱼ sⱼ          sⱼ the encoder's output at token j

hₜ₋₁ is the state of the first layer, as in GNMT (Wu et al. 2016), so that only this layer runs step by step. Dropout
acts on the output of every layer, but not on the state that is carried on (Zaremba et al. 2014).

B batch, T tokens, D documents, N tokens of all documents, S source tokens, C model width
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence
from torch.utils.checkpoint import checkpoint

from qkv.blocks.attention import pattern
from qkv.blocks.cache import CrossCache, EncoderMemory
from qkv.blocks.config import StackConfig
from qkv.blocks.document_order import DocumentOrder, SourceDocuments, find_sources, order_documents
from qkv.blocks.dropout import Dropout
from qkv.blocks.kernels.prepared import NO_HINTS, KernelHints
from qkv.blocks.mask import SequenceLayout
from qkv.blocks.tap import Tap

LAYERS: dict[str, type[nn.RNNBase]] = {"RNN": nn.RNN, "GRU": nn.GRU, "LSTM": nn.LSTM}
CELLS: dict[str, type[nn.RNNCellBase]] = {"RNN": nn.RNNCell, "GRU": nn.GRUCell, "LSTM": nn.LSTMCell}
State = tuple[Tensor, ...]
"""The state of a recurrent layer, (B, C) each: h, and the cell c of an LSTM."""


class RecurrentLayer(nn.Module):
    """One layer, in one or both directions. Torch's kernels run all steps."""

    def __init__(self, config: StackConfig, layer: str, *, bidirectional: bool) -> None:
        super().__init__()
        width = config.width // 2 if bidirectional else config.width
        self.rnn = LAYERS[layer](config.width, width, bidirectional=bidirectional)  # type: ignore[call-arg, arg-type]

    def forward(self, data: Tensor, batch_sizes: Tensor, state: State | None) -> tuple[Tensor, State]:
        """Vectors in step order (N, C) and the first state (D, C), or None for zeros → outputs (N, C), last state."""
        first: Tensor | State | None = None
        if state is not None:
            first = tuple(one[None] for one in state) if isinstance(self.rnn, nn.LSTM) else state[0][None]
        num_documents = int(batch_sizes[0])
        if len(data) == num_documents * len(batch_sizes):  # documents of equal length: torch has a faster kernel
            out, last = self.rnn(data.view(-1, num_documents, data.shape[-1]), first)
            out = out.flatten(0, 1)
        else:
            packed, last = self.rnn(PackedSequence(data, batch_sizes), first)
            out = packed.data
        return out, tuple(one[0] for one in (last if isinstance(last, tuple) else (last,)))


class AttentiveLayer(nn.Module):
    """The first layer of a decoder with additive attention. It runs step by step: attention needs the last state."""

    def __init__(self, config: StackConfig, layer: str) -> None:
        super().__init__()
        width = config.width
        self.cell = CELLS[layer](2 * width, width)  # type: ignore[call-arg]
        self.query, self.key = nn.Linear(width, width, bias=False), nn.Linear(width, width)
        self.score = nn.Linear(width, 1, bias=False)

    def forward(
        self, data: Tensor, batch_sizes: Tensor, state: State, keys: Tensor, values: Tensor, padding: Tensor
    ) -> tuple[Tensor, State, Tensor]:
        """As `RecurrentLayer`, with a source (D, S, C) for each document. Also returns the attention weights (N, S)."""
        outputs: list[Tensor] = []
        weights: list[Tensor] = []
        ended: list[State] = []  # the last states of documents that have ended
        for x in data.split(batch_sizes.tolist()):
            num = len(x)
            if num < len(keys):  # the longest documents come first, so documents that have ended are at the end
                ended.append(tuple(one[num:] for one in state))
                state = tuple(one[:num] for one in state)
                keys, values, padding = keys[:num], values[:num], padding[:num]
            energy = torch.tanh(self.query(state[0])[:, None] + keys)  # (D, S, C)
            weight = pattern(self.score(energy)[..., 0].masked_fill(padding, float("-inf")))  # (D, S)
            context = (weight[:, None] @ values)[:, 0]
            new = self.cell(torch.cat([x, context], dim=1), state if isinstance(self.cell, nn.LSTMCell) else state[0])
            state = new if isinstance(new, tuple) else (new,)
            outputs.append(state[0])
            weights.append(weight)
        last = tuple(torch.cat(parts) for parts in zip(state, *reversed(ended), strict=True))
        return torch.cat(outputs), last, torch.cat(weights)


class RecurrentCache:
    """The state of each recurrent layer after the tokens so far. Each sequence is one document, possibly padded."""

    is_default = False  # positions are counted in `lengths`

    def __init__(
        self,
        layers: int,
        batch_size: int,
        width: int,
        num_states: int,
        *,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        if batch_size < 1:
            raise ValueError(f"batch_size = {batch_size} of a cache must be at least 1")
        zeros = torch.zeros(batch_size, width, device=device, dtype=dtype)
        self.states: list[State] = [tuple(zeros.clone() for _ in range(num_states)) for _ in range(layers)]
        self.lengths = torch.zeros(batch_size, device=device, dtype=torch.long)  # tokens without padding
        self.has_empty_rows = True  # whether a sequence may have no token yet

    @property
    def batch_size(self) -> int:
        """The number of sequences."""
        return self.lengths.shape[0]

    def next_positions(self, ids: Tensor, document_ids: Tensor | None) -> Tensor:
        """Return the positions (B, T) of new tokens: each sequence continues after its last token."""
        real = torch.ones_like(ids) if document_ids is None else (document_ids != 0).long()
        return (self.lengths[:, None] + real.cumsum(dim=1) - 1).clamp(min=0)

    def read(self, layer: int, rows: Tensor) -> State:
        """Return the state of a layer for some sequences. A sequence without tokens has a state of zeros."""
        return tuple(state[rows] for state in self.states[layer])

    def write(self, layer: int, rows: Tensor, state: State) -> None:
        """Store the state of a layer for some sequences."""
        for old, new in zip(self.states[layer], state, strict=True):
            old[rows] = new.to(old.dtype)

    def advance(self, rows: Tensor, num_tokens: Tensor, *, is_padded: bool) -> None:
        """Count the new tokens of some sequences. Raise if a sequence occurs twice: it would have two documents."""
        if is_padded and len(rows.unique()) < len(rows):
            raise ValueError(
                "a sequence with a cache must be one document: leave out the cache, or unpack the documents"
            )
        self.lengths[rows] += num_tokens
        self.has_empty_rows = is_padded and bool((self.lengths == 0).any())

    def reorder(self, rows: Tensor) -> None:
        """Make sequence r a copy of sequence `rows[r]`. There may be more or fewer sequences than before."""
        self.states = [tuple(state[rows] for state in states) for states in self.states]
        self.lengths = self.lengths[rows]


class RecurrentStack(nn.Module):
    """A stack of recurrent layers on vectors with a layout; it has the same arguments as `Stack`."""

    def __init__(self, config: StackConfig, *, layer: str, name: str, causal: bool, cross: bool = False) -> None:
        super().__init__()
        self.config, self.name, self.causal = config, name, causal
        self.gradient_checkpointing = False  # recompute each layer in the backward pass, to save memory
        has_attention = cross and config.recurrent_attention == "additive"
        self.layers = nn.ModuleList(
            AttentiveLayer(config, layer)
            if has_attention and i == 0
            else RecurrentLayer(config, layer, bidirectional=not causal)
            for i in range(config.layers)
        )
        self.num_states = 2 if layer == "LSTM" else 1  # per layer
        # The source's summary → the first state of every layer
        self.initial = nn.Linear(config.width, config.layers * self.num_states * config.width) if cross else None
        self.dropout = Dropout(config.dropout)
        self.norm = None  # states need no norm: they lie between −1 and 1

    @torch.no_grad()
    def init_weights(self, config: StackConfig) -> None:
        """Sample all weights from a uniform distribution over ±1/√n, as torch does. n: numbers per direction or inputs.

        The bias of an LSTM's forget gate starts at 1, so that its cells keep their content at first (Gers et al. 2000,
        Jozefowicz et al. 2015). Torch has two biases, which are added; the other one starts at 0.
        """
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.RNNBase | nn.RNNCellBase):
                module.reset_parameters()
            if isinstance(module, nn.LSTM | nn.LSTMCell):
                width = module.hidden_size
                for name, bias in module.named_parameters():
                    if name.startswith("bias"):  # the gates are in the order i, f, g, o
                        bias[width : 2 * width] = 1.0 if name.startswith("bias_ih") else 0.0

    def forward(
        self,
        x: Tensor,
        layout: SequenceLayout,
        cache: RecurrentCache | None = None,
        memory: EncoderMemory | CrossCache | None = None,
        tap: Tap | None = None,
        *,
        selected: Tensor | None = None,
        hints: KernelHints = NO_HINTS,
    ) -> Tensor:
        """x (B, T, C) → (B, T, C), zero at padding; with `selected`, flat indices b·T + t, only these vectors, (N, C).

        It computes in the dtype of the weights, also under autocast: a state is a sum over all steps.
        """
        if cache is not None and cache.batch_size != x.shape[0]:
            raise ValueError(f"the cache has batch size {cache.batch_size}, the input {x.shape[0]}: make another cache")
        if tap is not None:
            tap.layouts[self.name] = layout
            if memory is not None:
                tap.layouts["source"] = memory.layout
        with torch.autocast(x.device.type, enabled=False):
            x = self._run_layers(x.to(next(self.parameters()).dtype), layout, cache, memory, tap)
        if tap is not None:
            x = tap(f"{self.name}.final", x)
        return x if selected is None else x.flatten(0, 1)[selected.flatten()]

    def _run_layers(
        self,
        x: Tensor,
        layout: SequenceLayout,
        cache: RecurrentCache | None,
        memory: EncoderMemory | CrossCache | None,
        tap: Tap | None,
    ) -> Tensor:
        batch_size, length, _ = x.shape
        order = order_documents(layout, batch_size)
        if not len(order.tokens):  # only padding
            return torch.zeros_like(x)
        sources = None
        if memory is not None:
            keys, values = memory.keys_values(0, self._keys_values)
            sources = find_sources(order, layout, keys[:, 0], values[:, 0], memory.layout)
        states = self._first_states(order, cache, sources)
        if cache is not None:
            cache.advance(order.rows, order.lengths, is_padded=layout.document_ids is not None)
        data = order.gather(x)
        for number, layer in enumerate(self.layers):
            arguments: tuple[Any, ...] = (data, order.batch_sizes, states[number])
            if isinstance(layer, AttentiveLayer):
                assert sources is not None
                arguments += (sources.keys, sources.values, sources.padding)
            if self.gradient_checkpointing and self.training and torch.is_grad_enabled():
                data, last, *weights = checkpoint(layer, *arguments, use_reentrant=False)
            else:
                data, last, *weights = layer(*arguments)
            if cache is not None:
                cache.write(number, order.rows, last)
            if tap is not None:
                if weights and sources is not None and memory is not None:
                    pattern_site = f"{self.name}.0.cross_pattern"
                    _record_pattern(tap, pattern_site, weights[0], order, sources, memory, (batch_size, length))
                site = f"{self.name}.{number}.state"
                if tap.matches(site):
                    data = order.gather(tap(site, order.scatter(data, batch_size, length)))
            data = self.dropout(data)
        return order.scatter(data, batch_size, length)

    def new_cache(self, batch_size: int, capacity: int) -> RecurrentCache:
        """Return an empty cache. A state has room for any number of tokens."""
        weight, shape = next(self.parameters()), (self.config.layers, batch_size, self.config.width, self.num_states)
        return RecurrentCache(*shape, device=weight.device, dtype=weight.dtype)

    def build_cross_cache(self, vectors: Tensor, layout: SequenceLayout) -> CrossCache:
        """Project the encoder's output (B, S, C) to the keys of additive attention, once for all decoding steps."""
        with torch.autocast(vectors.device.type, enabled=False):
            keys, values = EncoderMemory(vectors, layout).keys_values(0, self._keys_values)
        return CrossCache([keys], [values], layout)

    def _keys_values(self, vectors: Tensor) -> tuple[Tensor, Tensor]:
        """Return the keys and values (B, 1, S, C) of additive attention: U s and s.

        Without attention, only the first state reads the values, and the keys are not used.
        """
        first = self.layers[0]
        keys = first.key(vectors) if isinstance(first, AttentiveLayer) else vectors
        return keys[:, None], vectors[:, None]

    def _first_states(
        self, order: DocumentOrder, cache: RecurrentCache | None, sources: SourceDocuments | None
    ) -> Sequence[State | None]:
        """Return the state of each layer before the first token: from the cache, from the source, or None for zeros."""
        cached = None if cache is None else [cache.read(number, order.rows) for number in range(self.config.layers)]
        if sources is None or self.initial is None or (cache is not None and not cache.has_empty_rows):
            return cached or [None] * self.config.layers
        parts = torch.tanh(self.initial(sources.summaries())).chunk(self.config.layers * self.num_states, dim=1)
        states: list[State] = [parts[i : i + self.num_states] for i in range(0, len(parts), self.num_states)]
        if cache is None or cached is None:
            return states
        is_empty = (cache.lengths[order.rows] == 0)[:, None]
        return [
            tuple(torch.where(is_empty, *pair) for pair in zip(new, old, strict=True))
            for new, old in zip(states, cached, strict=True)
        ]


def _record_pattern(
    tap: Tap,
    site: str,
    weights: Tensor,
    order: DocumentOrder,
    sources: SourceDocuments,
    memory: EncoderMemory | CrossCache,
    shape: tuple[int, int],
) -> None:
    """Record attention weights (N, S) as a pattern (B, 1, T, S), or (B, 1, n·T, S) for n beams of each source."""
    if tap.changes(site):
        raise ValueError(
            f"{site} cannot be edited: every later state of a recurrent decoder depends on it; edit its states instead "
            f"({site.partition('.')[0]}.*.state)"
        )
    if tap.matches(site):
        full = weights.new_zeros(len(weights), memory.layout.positions.shape[1])
        full.scatter_(1, sources.columns[order.ranks()], weights)
        tap(site, order.scatter(full, *shape).view(memory.batch_size, 1, -1, full.shape[1]))
