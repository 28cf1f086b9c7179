"""The claims, one file each. `ORDER` is the order in which the book presents the claims of a chapter."""

ORDER: tuple[str, ...] = (
    # parts
    "permutation",
    "masking",
    "softmax-rows",
    "score-scaling",
    "attention-cost",
    "attention-memory",
    "path-length",
    "raw-indices",
    "heads",
    "linear-attention-stack",
    "rank-collapse",
    "residuals",
    "norm-placement",
    "layer-norm-formula",
    "positions",
    "expansion",
    "tied-embeddings",
    # families
    "vanishing-gradients",
    "recall",
    "bottleneck",
    "recurrent-language-model",
    "context-bidirectional",
    # training
    "warm-up",
    "teacher-forcing",
    "padding-and-packing",
    "precision",
    "gradient-accumulation",
    "label-smoothing",
    "dropout",
    "batch-size",
    # running
    "kv-cache",
    "beam-search",
    "sampling",
    "speculative",
    "quantisation",
    # uses
    "tokenizers",
    "word-vectors",
    "pretraining",
    # understanding
    "orthogonal",
    "superposition",
    "induction-heads",
    "grokking",
    "layers-probes",
    "neurons-and-gates",
)
