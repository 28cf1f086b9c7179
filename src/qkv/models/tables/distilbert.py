"""DistilBERT: BERT without token types and pooler, with half the layers."""

from qkv.models.tables.architecture import Architecture, Concatenated, ConfigKey, FieldRows, HeadTable, TensorNames
from qkv.models.tables.bert import EMBEDDING, MLM, STACK
from qkv.models.tables.common_rows import ACTIVATIONS_AND_ALIASES, BUFFERS, SPECIAL_TOKENS, task_head

ACTIVATION = ConfigKey("activation", "gelu", ACTIVATIONS_AND_ALIASES)
LAYER = "transformer.layer.{i}"
CLASSIFY: FieldRows = {"dense": "relu", "bias": True, "dropout": ConfigKey("seq_classif_dropout", 0.2)}
CLASSIFIER: TensorNames = {"head.dense": "pre_classifier", "head.out": "classifier"}
PREDICTIONS: TensorNames = {
    "head.dense": "vocab_transform",
    "head.norm": "vocab_layer_norm",
    "head.out": "vocab_projector",
}

DISTILBERT = Architecture(
    name="distilbert",
    prefix="distilbert.",
    stacks={
        "encoder": {
            **STACK,
            "width": ConfigKey("dim", 768),
            "layers": ConfigKey("n_layers", 6),
            "heads": ConfigKey("n_heads", 12),
            "ffn_width": ConfigKey("hidden_dim", 3072),
            "norm_eps": 1e-12,
            "feedforward": ACTIVATION,
            "token_types": 0,
            "dropout": ConfigKey("dropout", 0.1),
            "attention_dropout": ConfigKey("attention_dropout", 0.1),
        }
    },
    config=SPECIAL_TOKENS,
    body={
        **{ours: theirs for ours, theirs in EMBEDDING.items() if ours != "embedding.types"},
        "encoder.blocks.{i}.attention.qkv": Concatenated(
            *(f"{LAYER}.attention.{part}" for part in ("q_lin", "k_lin", "v_lin"))
        ),
        "encoder.blocks.{i}.attention.out": f"{LAYER}.attention.out_lin",
        "encoder.blocks.{i}.attention_sub.norm": f"{LAYER}.sa_layer_norm",
        "encoder.blocks.{i}.ffn.up": f"{LAYER}.ffn.lin1",
        "encoder.blocks.{i}.ffn.down": f"{LAYER}.ffn.lin2",
        "encoder.blocks.{i}.ffn_sub.norm": f"{LAYER}.output_layer_norm",
    },
    ignored=BUFFERS,
    heads=(
        HeadTable("DistilBertModel"),
        task_head("DistilBert", "mlm", {**MLM, "dense": ACTIVATION}, PREDICTIONS),
        task_head("DistilBert", "classify", CLASSIFY, CLASSIFIER),
        task_head("DistilBert", "choice", CLASSIFY, CLASSIFIER),
        task_head("DistilBert", "tag", {"bias": True, "dropout": ConfigKey("dropout", 0.1)}),
        task_head("DistilBert", "span", {"bias": True, "dropout": ConfigKey("qa_dropout", 0.1)}),
    ),
)
