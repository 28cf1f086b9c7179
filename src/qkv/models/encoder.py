"""Encoder-only (BERT): every token attends to all tokens. Pretrained by predicting masked tokens."""

from torch import Tensor, nn

from qkv.blocks import Embedding, Head, KernelHints, SequenceLayout, Tap, make_layout, make_stack
from qkv.models.config import Config
from qkv.models.runtime.length import check_length


class Encoder(nn.Module):
    """ids → embedding → stack → head.

    `document_ids` (B, T) are 1, 2, … for the documents of a sequence, and 0 for padding, which may be left or right.
    None means one document per sequence and no padding. If `max_documents` > 0, no sequence may have more documents,
    and heads that pool return one vector per document, (B, max_documents, V); otherwise (B, V).
    """

    def __init__(self, config: Config) -> None:
        super().__init__()
        assert config.encoder is not None
        self.config = config
        self.embedding = Embedding(config.encoder)
        self.encoder = make_stack(config.encoder, name="encoder", causal=False)
        self.head = Head(config.head, config.encoder, self.embedding.token)

    def hidden(
        self,
        ids: Tensor,
        document_ids: Tensor | None = None,
        positions: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        *,
        max_documents: int = 0,
        max_document_length: int = 0,
        tap: Tap | None = None,
        selected: Tensor | None = None,
    ) -> tuple[Tensor, SequenceLayout]:
        """Return the hidden states (B, T, C) that the head reads, and their layout.

        `selected` are flat indices b·T + t, (N,) or (B, Q). With them, the last block computes only these positions,
        and the result is (N, C). If `max_document_length` is not 0, no document may be longer; knowing this length
        makes packed sequences faster.
        """
        check_length(self.encoder.config, ids, positions, document_ids=document_ids)
        layout = make_layout(ids, document_ids, positions)
        hints = KernelHints(max_documents, max_document_length, is_default=document_ids is None and positions is None)
        x = self.embedding(ids, layout.positions, token_type_ids)
        return self.encoder(x, layout, tap=tap, selected=selected, hints=hints), layout

    def forward(
        self,
        ids: Tensor,
        document_ids: Tensor | None = None,
        positions: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        *,
        max_documents: int = 0,
        tap: Tap | None = None,
    ) -> Tensor:
        """Return the head's output (B, T, V) or, if the head pools, (B, V) or (B, max_documents, V)."""
        x, layout = self.hidden(ids, document_ids, positions, token_type_ids, max_documents=max_documents, tap=tap)
        out: Tensor = self.head(x, layout, max_documents)
        return out
