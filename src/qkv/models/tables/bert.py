"""BERT, RoBERTa, ELECTRA and ALBERT: post-norm encoders with learned positions."""

from typing import Any

from qkv.models.tables.architecture import (
    Architecture,
    ComputedField,
    Concatenated,
    ConfigKey,
    FieldRows,
    HeadTable,
    Json,
    TensorNames,
)
from qkv.models.tables.common_rows import ACTIVATIONS_AND_ALIASES, BUFFERS, SPECIAL_TOKENS, head_dropout, task_head

STACK: FieldRows = {
    "vocab_size": ConfigKey("vocab_size", 30522),
    "width": ConfigKey("hidden_size", 768),
    "layers": ConfigKey("num_hidden_layers", 12),
    "heads": ConfigKey("num_attention_heads", 12),
    "ffn_width": ConfigKey("intermediate_size", 3072),
    "position": "learned",
    "max_positions": ConfigKey("max_position_embeddings", 512),
    "norm_placement": "post",
    "norm_eps": ConfigKey("layer_norm_eps", 1e-12),
    "embedding_norm": "extra",
    "feedforward": ConfigKey("hidden_act", "gelu", ACTIVATIONS_AND_ALIASES),
    "token_types": ConfigKey("type_vocab_size", 2),
    "dropout": ConfigKey("hidden_dropout_prob", 0.1),
    "attention_dropout": ConfigKey("attention_probs_dropout_prob", 0.1),
    "init_std": ConfigKey("initializer_range", 0.02),
}
EMBEDDING: TensorNames = {
    "embedding.token": "embeddings.word_embeddings",
    "embedding.position": "embeddings.position_embeddings",
    "embedding.types": "embeddings.token_type_embeddings",
    "embedding.norm": "embeddings.LayerNorm",
}
LAYER = "encoder.layer.{i}"
BODY: TensorNames = {
    **EMBEDDING,
    "encoder.blocks.{i}.attention.qkv": Concatenated(
        *(f"{LAYER}.attention.self.{part}" for part in ("query", "key", "value"))
    ),
    "encoder.blocks.{i}.attention.out": f"{LAYER}.attention.output.dense",
    "encoder.blocks.{i}.attention_sub.norm": f"{LAYER}.attention.output.LayerNorm",
    "encoder.blocks.{i}.ffn.up": f"{LAYER}.intermediate.dense",
    "encoder.blocks.{i}.ffn.down": f"{LAYER}.output.dense",
    "encoder.blocks.{i}.ffn_sub.norm": f"{LAYER}.output.LayerNorm",
}
NEEDS: dict[str, tuple[Any, ...]] = {
    "is_decoder": (False,),
    "add_cross_attention": (False,),
    "position_embedding_type": ("absolute",),
}

ACTIVATION = ConfigKey("hidden_act", "gelu", ACTIVATIONS_AND_ALIASES)
TIED = ConfigKey("tie_word_embeddings", True)
DROPOUT = head_dropout("classifier_dropout", "hidden_dropout_prob")
POOLED: FieldRows = {"dense": "tanh", "bias": True, "dropout": DROPOUT}
TAG: FieldRows = {"bias": True, "dropout": DROPOUT}
MLM: FieldRows = {"kind": "mlm", "dense": ACTIVATION, "dense_norm": True, "tied": TIED, "bias": True}

POOLER: TensorNames = {"head.dense": "{prefix}pooler.dense"}
CLASSIFIER: TensorNames = {**POOLER, "head.out": "classifier"}
PREDICTIONS: TensorNames = {
    "head.dense": "cls.predictions.transform.dense",
    "head.norm": "cls.predictions.transform.LayerNorm",
    "head.out": "cls.predictions.decoder",
}
SENTENCE: TensorNames = {"head.sentence.dense": "{prefix}pooler.dense", "head.sentence.out": "cls.seq_relationship"}

BERT = Architecture(
    name="bert",
    prefix="bert.",
    stacks={"encoder": STACK},
    config=SPECIAL_TOKENS,
    supported_values=NEEDS,
    body=BODY,
    aliases={"cls.predictions.decoder.bias": ("cls.predictions.bias",)},
    ignored=BUFFERS,
    class_aliases={"AntiBERTy": "BertForMaskedLM"},  # a BERT of antibodies, with other heads besides
    other_heads=tuple(f"cls.{head}.*" for head in ("species", "chain", "graft")),
    heads=(
        HeadTable("BertModel", {"kind": "embed", "dense": "tanh"}, POOLER),
        task_head("Bert", "mlm", MLM, PREDICTIONS),
        HeadTable("BertForPreTraining", {**MLM, "next_sentence_classes": 2}, {**PREDICTIONS, **SENTENCE}, "vocab_size"),
        task_head("Bert", "classify", POOLED, CLASSIFIER),
        task_head("Bert", "choice", POOLED, CLASSIFIER),
        task_head("Bert", "tag", TAG),
        task_head("Bert", "span"),
        # Last, so that a two-class classifier, which has the same shape, is not exported as this class.
        HeadTable(
            "BertForNextSentencePrediction",
            {"kind": "classify", "dense": "tanh", "bias": True},
            {**POOLER, "head.out": "cls.seq_relationship"},
            2,
        ),
    ),
)


ROBERTA_STACK: FieldRows = {
    **STACK,
    "vocab_size": ConfigKey("vocab_size", 50265),
    # Position 0 is row pad + 1 of the table: the rows before belong to padding.
    "position_offset": ComputedField(lambda theirs: int(theirs.get("pad_token_id", 1)) + 1, lambda value, stack: {}),
    "max_positions": ComputedField(
        lambda theirs: int(theirs.get("max_position_embeddings", 512)) - int(theirs.get("pad_token_id", 1)) - 1,
        lambda value, stack: {"max_position_embeddings": value + stack.position_offset},
    ),
}
ROBERTA_LM: TensorNames = {
    "head.dense": "lm_head.dense",
    "head.norm": "lm_head.layer_norm",
    "head.out": "lm_head.decoder",
}
DENSE_CLASSIFIER: TensorNames = {"head.dense": "classifier.dense", "head.out": "classifier.out_proj"}

ROBERTA = Architecture(
    name="roberta",
    prefix="roberta.",
    stacks={"encoder": ROBERTA_STACK},
    config=SPECIAL_TOKENS,
    supported_values=NEEDS,
    body=BODY,
    aliases={"lm_head.decoder.bias": ("lm_head.bias",)},
    ignored=BUFFERS,
    heads=(
        HeadTable("RobertaModel", {"kind": "embed", "dense": "tanh"}, POOLER),
        task_head("Roberta", "mlm", {**MLM, "dense": "gelu"}, ROBERTA_LM),
        task_head("Roberta", "classify", POOLED, DENSE_CLASSIFIER),
        task_head("Roberta", "choice", POOLED, CLASSIFIER),
        task_head("Roberta", "tag", TAG),
        task_head("Roberta", "span"),
    ),
)


def _read_embedding_width(theirs: Json) -> int:
    narrow, width = theirs.get("embedding_size", 128), theirs.get("hidden_size", 256)
    return 0 if narrow == width else int(narrow)


ELECTRA_STACK: FieldRows = {
    **STACK,
    "width": ConfigKey("hidden_size", 256),
    "heads": ConfigKey("num_attention_heads", 4),
    "ffn_width": ConfigKey("intermediate_size", 1024),
    "embedding_width": ComputedField(
        _read_embedding_width, lambda value, stack: {"embedding_size": value or stack.width}
    ),
}
ELECTRA_GENERATOR: TensorNames = {
    "head.dense": "generator_predictions.dense",
    "head.norm": "generator_predictions.LayerNorm",
    "head.out": "generator_lm_head",
}
ELECTRA_DISCRIMINATOR: TensorNames = {
    "head.dense": "discriminator_predictions.dense",
    "head.out": "discriminator_predictions.dense_prediction",
}
ELECTRA = Architecture(
    name="electra",
    prefix="electra.",
    stacks={"encoder": ELECTRA_STACK},
    config=SPECIAL_TOKENS,
    supported_values={
        **NEEDS,
        "summary_type": ("first",),
        "summary_use_proj": (True,),
        "summary_activation": ("gelu",),
    },
    body={**BODY, "embedding.project": "embeddings_project"},
    ignored=BUFFERS,
    heads=(
        HeadTable("ElectraModel"),
        task_head("Electra", "mlm", {**MLM, "dense": "gelu"}, ELECTRA_GENERATOR),
        # Replaced-token detection: one logit per token, positive where it was replaced.
        HeadTable(
            "ElectraForPreTraining", {"kind": "tag", "dense": ACTIVATION, "bias": True}, ELECTRA_DISCRIMINATOR, 1
        ),
        task_head("Electra", "classify", {**POOLED, "dense": "gelu"}, DENSE_CLASSIFIER),
        task_head(
            "Electra",
            "choice",
            {"dense": "gelu", "bias": True, "dropout": ConfigKey("summary_last_dropout", 0.1)},
            {"head.dense": "sequence_summary.summary", "head.out": "classifier"},
        ),
        task_head("Electra", "tag", TAG),
        task_head("Electra", "span"),
    ),
)

ALBERT_STACK: FieldRows = {
    **STACK,
    "vocab_size": ConfigKey("vocab_size", 30000),
    "width": ConfigKey("hidden_size", 4096),
    "heads": ConfigKey("num_attention_heads", 64),
    "ffn_width": ConfigKey("intermediate_size", 16384),
    "embedding_width": ConfigKey("embedding_size", 128),
    "num_layer_groups": ConfigKey("num_hidden_groups", 1),
    "feedforward": ConfigKey("hidden_act", "gelu_new", ACTIVATIONS_AND_ALIASES),
    "dropout": ConfigKey("hidden_dropout_prob", 0.0),
    "attention_dropout": ConfigKey("attention_probs_dropout_prob", 0.0),
}


ALBERT_LAYER = "encoder.albert_layer_groups.{i}.albert_layers.0"
ALBERT_ACTIVATION = ConfigKey("hidden_act", "gelu_new", ACTIVATIONS_AND_ALIASES)
ALBERT_MLM: FieldRows = {**MLM, "dense": ALBERT_ACTIVATION}
ALBERT_DROPOUT = ConfigKey("classifier_dropout_prob", 0.1)
ALBERT_POOLED: FieldRows = {**POOLED, "dropout": ALBERT_DROPOUT}
ALBERT_POOLER: TensorNames = {"head.dense": "{prefix}pooler"}
ALBERT_CLASSIFIER: TensorNames = {**ALBERT_POOLER, "head.out": "classifier"}
ALBERT_PREDICTIONS: TensorNames = {
    "head.dense": "predictions.dense",
    "head.norm": "predictions.LayerNorm",
    "head.out": "predictions.decoder",
}
ALBERT = Architecture(
    name="albert",
    prefix="albert.",
    stacks={"encoder": ALBERT_STACK},
    config=SPECIAL_TOKENS,
    supported_values={**NEEDS, "inner_group_num": (1,)},
    body={
        **EMBEDDING,
        "embedding.project": "encoder.embedding_hidden_mapping_in",
        "encoder.blocks.{i}.attention.qkv": Concatenated(
            *(f"{ALBERT_LAYER}.attention.{part}" for part in ("query", "key", "value"))
        ),
        "encoder.blocks.{i}.attention.out": f"{ALBERT_LAYER}.attention.dense",
        "encoder.blocks.{i}.attention_sub.norm": f"{ALBERT_LAYER}.attention.LayerNorm",
        "encoder.blocks.{i}.ffn.up": f"{ALBERT_LAYER}.ffn",
        "encoder.blocks.{i}.ffn.down": f"{ALBERT_LAYER}.ffn_output",
        "encoder.blocks.{i}.ffn_sub.norm": f"{ALBERT_LAYER}.full_layer_layer_norm",
    },
    aliases={"predictions.decoder.bias": ("predictions.bias",)},
    ignored=BUFFERS,
    heads=(
        HeadTable("AlbertModel", {"kind": "embed", "dense": "tanh"}, ALBERT_POOLER),
        task_head("Albert", "mlm", ALBERT_MLM, ALBERT_PREDICTIONS),
        HeadTable(
            "AlbertForPreTraining",
            {
                **ALBERT_MLM,
                "next_sentence_classes": ComputedField(
                    lambda theirs: len(theirs.get("id2label") or "ab"),
                    lambda value, head: {"id2label": {str(i): f"LABEL_{i}" for i in range(value)}},
                ),
            },
            {
                **ALBERT_PREDICTIONS,
                "head.sentence.dense": "{prefix}pooler",
                "head.sentence.out": "sop_classifier.classifier",
            },
            "vocab_size",
        ),
        task_head("Albert", "classify", ALBERT_POOLED, ALBERT_CLASSIFIER),
        task_head("Albert", "choice", ALBERT_POOLED, ALBERT_CLASSIFIER),
        task_head("Albert", "tag", {**TAG, "dropout": ALBERT_DROPOUT}),
        task_head("Albert", "span"),
    ),
)
