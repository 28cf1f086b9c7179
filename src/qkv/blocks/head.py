"""The head: it computes the model's outputs from the hidden states of a stack.

All heads have the same structure. They take the hidden state of every token, or one vector per document, and apply an
optional dense layer. Then they project: to the vocabulary (lm, mlm), to classes (classify, choice, tag), to start and
end logits (span), to the vocabulary and a blank (ctc), or to the numbers of a frame (frames). An embed head without
`outputs` does not project.

B batch, T tokens, E documents in a sequence, C model width, V outputs
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from qkv.blocks.config import HeadConfig, StackConfig
from qkv.blocks.dropout import Dropout
from qkv.blocks.feedforward import ACTIVATIONS
from qkv.blocks.mask import SequenceLayout
from qkv.blocks.norm import make_norm

POOLED_KINDS = ("classify", "choice", "embed")
"""Heads that read one vector per document. All other heads read every token."""


def pool(x: Tensor, layout: SequenceLayout, method: str, max_documents: int = 1) -> Tensor:
    """Return one vector per document, x (B, T, C) → (B, E, C): its first or last token, or the mean of its tokens.

    Document e has document id e + 1. If a sequence has no document e, its vector e is zero.
    """
    document_ids = layout.document_ids
    if document_ids is None:
        document_ids = torch.ones(x.shape[:2], dtype=torch.long, device=x.device)
    member = document_membership(document_ids, max_documents)
    if method == "mean":
        dtype = torch.promote_types(x.dtype, torch.float32)
        x = x.masked_fill((document_ids == 0)[:, :, None], 0.0).to(dtype)
        with torch.autocast("cpu" if x.is_meta else x.device.type, enabled=False):  # the mean stays in float32
            return member.to(dtype) @ x / member.sum(-1, keepdim=True).clamp(min=1)
    index = pooled_index(member, method)
    chosen = x.gather(1, index[:, :, None].expand(-1, -1, x.shape[-1]))
    return chosen.masked_fill(~member.any(-1, keepdim=True), 0.0)


def document_membership(document_ids: Tensor, max_documents: int) -> Tensor:
    """Document ids (B, T) → (B, E, T), True where token t belongs to document e."""
    return document_ids[:, None, :] == torch.arange(1, max_documents + 1, device=document_ids.device)[None, :, None]


def pooled_index(membership: Tensor, method: str) -> Tensor:
    """Return the index (B, E) of the first or last token of each document. It is arbitrary for a missing document."""
    if method == "first":
        return membership.int().argmax(-1)
    return membership.shape[-1] - 1 - membership.int().flip(-1).argmax(-1)


class FutureHead(nn.Module):
    """x + SiLU(Wx): what the head reads to predict a later token, as in Medusa (Cai et al. 2024).

    Training adds the loss of each later token (Gloeckle et al. 2024); decoding predicts the next token only.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.dense = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """x (…, C) → (…, C)."""
        return x + F.silu(self.dense(x))


class Head(nn.Module):
    """(pool) → (scale) → (dense → activation → norm) → (dropout) → output."""

    def __init__(self, config: HeadConfig, stack: StackConfig, token: nn.Embedding | None = None) -> None:
        super().__init__()
        self.config = config
        inner = token.embedding_dim if config.tied and token is not None else stack.width
        self.scale = stack.width**-0.5 if config.scale == "rsqrt" else 1.0
        self.dense = None
        if config.dense != "none":
            self.dense = nn.Linear(stack.width, inner, bias=config.dense_bias)
            self.activation = ACTIVATIONS[config.dense]
        self.norm = make_norm(stack, inner) if config.dense_norm else None
        self.dropout = Dropout(config.dropout)
        self.one_hot = None  # the network calls it, because it reads token ids
        if config.one_hot_positions:
            from qkv.blocks.one_hot import OneHotTable

            self.one_hot = OneHotTable(config.one_hot_positions, stack.vocab_size, stack.width)
        self.out = None
        if config.kind != "none" and (config.kind != "embed" or config.outputs):
            self.out = nn.Linear(inner, config.outputs, bias=config.bias)
            if config.tied:
                if token is None:
                    raise ValueError("a tied head needs the token embedding")
                if token.num_embeddings != config.outputs:
                    raise ValueError(f"a tied head has {token.num_embeddings} outputs, not {config.outputs}")
                if inner != stack.width and self.dense is None:
                    raise ValueError(f"a tied head on vectors of {stack.width} needs a dense layer to reach {inner}")
                self.out.weight = token.weight
        self.future = nn.ModuleList(FutureHead(stack.width) for _ in range(config.future_tokens))
        self.sentence = None  # the training loss calls this head directly; `forward` does not use it
        if config.next_sentence_classes:
            sentence = HeadConfig(kind="classify", outputs=config.next_sentence_classes, dense="tanh", bias=True)
            self.sentence = Head(sentence, stack)

    def project(self, x: Tensor) -> Tensor:
        """Hidden states (…, C) → outputs (…, V). For a loss at some positions only, pass only the hidden states of
        these positions.
        """
        x = self.transform(x)
        if self.one_hot is not None and self.out is not None:  # variants differ by less than half precision rounds
            with torch.autocast("cpu" if x.is_meta else x.device.type, enabled=False):
                x = self.out(x.to(self.out.weight.dtype))
        elif self.out is not None:
            x = self.out(x.to(self.out.weight.dtype))
        if cap := self.config.logit_cap:
            x = cap * torch.tanh(x / cap)
        if self.config.normalize:  # in float32: F.normalize's eps of 1e-12 would underflow to 0 in float16
            x = F.normalize(x.to(torch.promote_types(x.dtype, torch.float32)), dim=-1)
        return x

    def transform(self, x: Tensor) -> Tensor:
        """Hidden states (…, C) → the input of the output matrix: scale, dense layer, norm and dropout."""
        if self.scale != 1.0:
            x = x * self.scale
        if self.dense is not None:
            x = self.activation(self.dense(x.to(self.dense.weight.dtype)))
        if self.norm is not None:
            x = self.norm(x)
        out: Tensor = self.dropout(x)
        return out

    def forward(self, x: Tensor, layout: SequenceLayout, max_documents: int = 0) -> Tensor:
        """x (B, T, C) → (B, T, V). Pooled kinds return (B, V) if max_documents is 0, else (B, max_documents, V)."""
        if self.config.kind not in POOLED_KINDS:
            return self.project(x)
        out = self.project(pool(x, layout, self.config.pool, max_documents or 1))
        return out if max_documents else out[:, 0]
