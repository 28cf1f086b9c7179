"""DistilBERT: BERT without sentence types and pooler, half as deep."""

from qkv.models.tables.bert import EMBEDDING, MLM, SPAN, TIED
from qkv.models.tables.shared import ACTIVATIONS_AND_ALIASES, BUFFERS, SPECIAL
from qkv.models.tables.table import Architecture, HeadTable, Join, Key, Names, Rows

ACTIVATION = Key("activation", "gelu", ACTIVATIONS_AND_ALIASES)
LAYER = "transformer.layer.{i}"
CLASSIFY: Rows = {"kind": "classify", "dense": "relu", "bias": True, "dropout": Key("seq_classif_dropout", 0.2)}
CLASSIFIER: Names = {"head.dense": "pre_classifier", "head.out": "classifier"}

DISTILBERT = Architecture(
    name="distilbert",
    prefix="distilbert.",
    stacks={
        "encoder": {
            "vocab": Key("vocab_size", 30522),
            "width": Key("dim", 768),
            "layers": Key("n_layers", 6),
            "heads": Key("n_heads", 12),
            "ffn_width": Key("hidden_dim", 3072),
            "position": "learned",
            "max_positions": Key("max_position_embeddings", 512),
            "norm_place": "post",
            "norm_eps": 1e-12,
            "embedding_norm": "added",
            "feedforward": ACTIVATION,
            "dropout": Key("dropout", 0.1),
            "attention_dropout": Key("attention_dropout", 0.1),
            "init_std": Key("initializer_range", 0.02),
        }
    },
    config=SPECIAL,
    body={
        **{ours: theirs for ours, theirs in EMBEDDING.items() if ours != "embedding.types"},
        "encoder.blocks.{i}.attention.qkv": Join(
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
        HeadTable(
            "DistilBertForMaskedLM",
            {**MLM, "dense": ACTIVATION, "tied": TIED},
            {"head.dense": "vocab_transform", "head.norm": "vocab_layer_norm", "head.out": "vocab_projector"},
            "vocab",
        ),
        HeadTable("DistilBertForSequenceClassification", CLASSIFY, CLASSIFIER, "labels"),
        HeadTable("DistilBertForMultipleChoice", {**CLASSIFY, "kind": "choice"}, CLASSIFIER, 1),
        HeadTable(
            "DistilBertForTokenClassification",
            {"kind": "tag", "bias": True, "dropout": Key("dropout", 0.1)},
            {"head.out": "classifier"},
            "labels",
        ),
        HeadTable(
            "DistilBertForQuestionAnswering", {**SPAN, "dropout": Key("qa_dropout", 0.1)}, {"head.out": "qa_outputs"}, 2
        ),
    ),
)
