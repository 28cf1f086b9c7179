"""What the three families of networks have in common: one forward signature, and the names of their parts.

B batch, T tokens, S tokens of the source, C model width, V outputs of the head
"""

import torch
from torch import Tensor, nn

from qkv.blocks import (
    CrossCache,
    Embedding,
    EncoderMemory,
    Head,
    Inputs,
    KernelHints,
    SelfCache,
    SequenceLayout,
    Stack,
    Tap,
    as_inputs,
    make_layout,
)
from qkv.blocks.back_ends import BACK_ENDS
from qkv.blocks.front_ends import FRONT_ENDS
from qkv.errors import QkvError, UsageError
from qkv.models.config import Config
from qkv.models.runtime import check_length

STACK_NAMES = {"encoder": ("encoder",), "decoder": ("decoder",), "seq2seq": ("encoder", "decoder")}


class Network(nn.Module):
    """inputs → embedding and front ends → stack → head. The families are `Encoder`, `Decoder` and `Seq2Seq`.

    Wherever a network takes `Inputs`, it accepts a tensor of ids (B, T), too: each sequence is then one document.
    """

    embedding: Embedding  # of a network with one stack; an encoder-decoder has two embeddings
    head: Head

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.front_ends = nn.ModuleDict(
            {
                front_end.kind: FRONT_ENDS[front_end.kind].module(front_end, config.stack.width)
                for front_end in config.front_ends
            }
        )
        self.back_ends = nn.ModuleDict({one.kind: BACK_ENDS[one.kind].module(one) for one in config.back_ends})
        self.back_ends.requires_grad_(False)

    @property
    def stacks(self) -> dict[str, Stack]:
        """The stacks by name, "encoder" or "decoder", in the order in which they run. The head reads the last."""
        return {name: getattr(self, name) for name in STACK_NAMES[self.config.family]}

    @property
    def embeddings(self) -> dict[str, Embedding]:
        """The embedding of each stack, by the name of the stack."""
        return dict.fromkeys(STACK_NAMES[self.config.family], self.embedding)

    @property
    def output_stack(self) -> Stack:
        """The stack under the head: the decoder if there is one, else the encoder."""
        return next(reversed(self.stacks.values()))

    @property
    def output_embedding(self) -> Embedding:
        """The embedding of the stack under the head."""
        return next(reversed(self.embeddings.values()))

    @property
    def has_source(self) -> bool:
        """Whether the network is an encoder-decoder."""
        return self.config.family == "seq2seq"

    @property
    def is_causal(self) -> bool:
        """Whether the stack under the head reads from left to right, so that it can have a cache."""
        return self.config.family != "encoder"

    @property
    def generates(self) -> bool:
        """Whether the network predicts the next token."""
        return self.is_causal and self.config.head.kind == "lm"

    @property
    def device(self) -> torch.device:
        """The device of the weights."""
        return next(self.parameters()).device

    def new_cache(self, batch_size: int, capacity: int) -> SelfCache:
        """Return an empty cache with room for `capacity` tokens per sequence. It grows when it is full.

        Each beam counts towards `batch_size`. A recurrent stack gets a `RecurrentCache`, of any capacity. It is
        declared as a `SelfCache`, because networks and decoding use only the methods that both have.
        """
        if not self.is_causal:
            raise ValueError("an encoder has no cache, because its tokens attend to later tokens, too")
        return self.output_stack.new_cache(batch_size, capacity)

    def encode(self, source: Inputs | Tensor, *, tap: Tap | None = None) -> EncoderMemory:
        """Run the encoder on the source (B, S), and return the memory that the decoder attends to."""
        x, layout, hints = self._run("encoder", as_inputs(source), tap=tap)
        return EncoderMemory(x, layout, hints)

    def build_cross_cache(self, memory: EncoderMemory) -> CrossCache:
        """Project the encoder's output to the keys and values of every decoder layer, once for all decoding steps."""
        return self.output_stack.build_cross_cache(memory.vectors, memory.layout)

    def hidden(
        self,
        inputs: Inputs | Tensor,
        *,
        cache: SelfCache | None = None,
        memory: EncoderMemory | CrossCache | None = None,
        tap: Tap | None = None,
        selected: Tensor | None = None,
    ) -> tuple[Tensor, SequenceLayout]:
        """Return the hidden states (B, T, C) that the head reads, and their layout.

        With a cache, `inputs` are only the new tokens. An encoder-decoder encodes `inputs.source`, or attends to
        `memory` if it is given. `selected` are flat indices b·T + t, (N,) or (B, Q). With them, the last block computes
        only these positions, and the result is (N, C).
        """
        inputs = as_inputs(inputs)
        if self.has_source:
            if memory is None:
                if inputs.source is None:
                    raise ValueError(
                        "an encoder-decoder needs a source: give Inputs(ids, source=Inputs(...)), or memory="
                    )
                memory = self.encode(inputs.source, tap=tap)
            if inputs.batch_size % memory.batch_size:
                raise ValueError(
                    f"a batch of {inputs.batch_size} targets for {memory.batch_size} sources: it must be a multiple of "
                    "them"
                )
        name = "decoder" if self.is_causal else "encoder"
        x, layout, _ = self._run(name, inputs, cache=cache, memory=memory, tap=tap, selected=selected)
        return x, layout

    def forward(
        self,
        inputs: Inputs | Tensor,
        *,
        cache: SelfCache | None = None,
        memory: EncoderMemory | CrossCache | None = None,
        tap: Tap | None = None,
    ) -> Tensor:
        """Return the head's output (B, T, V) or, if the head pools, (B, V) or (B, max_documents, V)."""
        inputs = as_inputs(inputs)
        x, layout = self.hidden(inputs, cache=cache, memory=memory, tap=tap)
        out: Tensor = self.head(x, layout, inputs.max_documents)
        return out

    def check_methods(self) -> None:
        """Raise an error if a `forward` is replaced that training and decoding do not call.

        They compute outputs of some positions only: `hidden`, then `Head.project`.
        """
        for module, base, method in ((self, Network, "hidden"), (self.head, Head, "head.project")):
            if type(module).forward is not base.forward or "forward" in vars(module):
                raise QkvError(
                    f"{type(module).__qualname__} has a `forward` of its own, which training and decoding do not call: "
                    f"they compute the outputs of some positions only. Change `{method}` instead"
                )

    def _run(
        self,
        name: str,
        inputs: Inputs,
        *,
        cache: SelfCache | None = None,
        memory: EncoderMemory | CrossCache | None = None,
        tap: Tap | None = None,
        selected: Tensor | None = None,
    ) -> tuple[Tensor, SequenceLayout, KernelHints]:
        stack, ids, document_ids, positions = self.stacks[name], inputs.ids, inputs.document_ids, inputs.positions
        check_length(stack.config, ids, positions, cache, document_ids)
        repeats_positions = bool(inputs.payloads) and positions is not None
        if cache is not None:
            if positions is None:
                positions = cache.next_positions(ids, document_ids)
            else:
                cache.is_default = False
        layout = make_layout(ids, document_ids, positions)
        is_default = document_ids is None and positions is None
        hints = KernelHints(inputs.max_documents, inputs.max_document_length, repeats_positions, is_default)
        x = self.embeddings[name](ids, layout.positions, inputs.token_type_ids, document_ids)
        for kind, payload in inputs.payloads.items():
            vectors = self._front_end(kind)(payload).to(x.dtype)  # (m, C)
            x = x.flatten(0, 1).index_copy(0, payload.rows, vectors).view_as(x)
        x = stack(x, layout, cache, memory, tap, selected=selected, hints=hints)
        if self.head.one_hot is not None and stack is self.output_stack:
            x = self.head.one_hot(x, ids, layout.positions)
        return x, layout, hints

    def _front_end(self, kind: str) -> nn.Module:
        if kind not in self.front_ends:
            known = ", ".join(self.front_ends) or "none"
            raise UsageError(f"inputs have a payload {kind!r}, but the front ends of this model are: {known}")
        return self.front_ends[kind]
