"""BERT, RoBERTa, ELECTRA and ALBERT: post-norm encoders with learned positions."""

from typing import Any

from qkv.models.tables.shared import ACTIVATIONS_AND_ALIASES, BUFFERS, SPECIAL, dropout_of_head
from qkv.models.tables.table import Architecture, HeadTable, Join, Json, Key, Names, Rows, Rule

STACK: Rows = {
    "vocab": Key("vocab_size", 30522),
    "width": Key("hidden_size", 768),
    "layers": Key("num_hidden_layers", 12),
    "heads": Key("num_attention_heads", 12),
    "ffn_width": Key("intermediate_size", 3072),
    "position": "learned",
    "max_positions": Key("max_position_embeddings", 512),
    "norm_place": "post",
    "norm_eps": Key("layer_norm_eps", 1e-12),
    "embedding_norm": "added",
    "feedforward": Key("hidden_act", "gelu", ACTIVATIONS_AND_ALIASES),
    "types": Key("type_vocab_size", 2),
    "dropout": Key("hidden_dropout_prob", 0.1),
    "attention_dropout": Key("attention_probs_dropout_prob", 0.1),
    "init_std": Key("initializer_range", 0.02),
}
EMBEDDING: Names = {
    "embedding.token": "embeddings.word_embeddings",
    "embedding.position": "embeddings.position_embeddings",
    "embedding.types": "embeddings.token_type_embeddings",
    "embedding.norm": "embeddings.LayerNorm",
}
LAYER = "encoder.layer.{i}"
BODY: Names = {
    **EMBEDDING,
    "encoder.blocks.{i}.attention.qkv": Join(*(f"{LAYER}.attention.self.{part}" for part in ("query", "key", "value"))),
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

ACTIVATION = Key("hidden_act", "gelu", ACTIVATIONS_AND_ALIASES)
TIED = Key("tie_word_embeddings", True)
DROPOUT = dropout_of_head("classifier_dropout", "hidden_dropout_prob")
POOLED: Rows = {"kind": "classify", "dense": "tanh", "bias": True, "dropout": DROPOUT}
TAG: Rows = {"kind": "tag", "bias": True, "dropout": DROPOUT}
SPAN: Rows = {"kind": "span", "bias": True}
MLM: Rows = {"kind": "mlm", "dense": ACTIVATION, "dense_norm": True, "tied": TIED, "bias": True}
QA_NAMES: Names = {"head.out": "qa_outputs"}

POOLER: Names = {"head.dense": "{prefix}pooler.dense"}
CLASSIFIER: Names = {**POOLER, "head.out": "classifier"}
PREDICTIONS: Names = {
    "head.dense": "cls.predictions.transform.dense",
    "head.norm": "cls.predictions.transform.LayerNorm",
    "head.out": "cls.predictions.decoder",
}
SENTENCE: Names = {"head.sentence.dense": "{prefix}pooler.dense", "head.sentence.out": "cls.seq_relationship"}

BERT = Architecture(
    name="bert",
    prefix="bert.",
    stacks={"encoder": STACK},
    config=SPECIAL,
    needs=NEEDS,
    body=BODY,
    aliases={"cls.predictions.decoder.bias": ("cls.predictions.bias",)},
    ignored=BUFFERS,
    heads=(
        HeadTable("BertModel", {"kind": "embed", "dense": "tanh"}, POOLER),
        HeadTable("BertForMaskedLM", MLM, PREDICTIONS, "vocab"),
        HeadTable("BertForPreTraining", {**MLM, "sentence_outputs": 2}, {**PREDICTIONS, **SENTENCE}, "vocab"),
        HeadTable("BertForSequenceClassification", POOLED, CLASSIFIER, "labels"),
        HeadTable("BertForMultipleChoice", {**POOLED, "kind": "choice"}, CLASSIFIER, 1),
        HeadTable("BertForTokenClassification", TAG, {"head.out": "classifier"}, "labels"),
        HeadTable("BertForQuestionAnswering", SPAN, QA_NAMES, 2),
        # Last, so that a two-class model is not written as this one, which has the same shape.
        HeadTable(
            "BertForNextSentencePrediction",
            {"kind": "classify", "dense": "tanh", "bias": True},
            {**POOLER, "head.out": "cls.seq_relationship"},
            2,
        ),
    ),
)


def _read_positions(theirs: Json) -> int:
    return int(theirs.get("max_position_embeddings", 512)) - int(theirs.get("pad_token_id", 1)) - 1


ROBERTA_STACK: Rows = {
    **STACK,
    "vocab": Key("vocab_size", 50265),
    # Position 0 reads row pad + 1: the rows up to there belong to padding.
    "position_offset": Rule(lambda theirs: int(theirs.get("pad_token_id", 1)) + 1, lambda value, stack: {}),
    "max_positions": Rule(
        _read_positions, lambda value, stack: {"max_position_embeddings": value + stack.position_offset}
    ),
}
ROBERTA_LM: Names = {
    "head.dense": "lm_head.dense",
    "head.norm": "lm_head.layer_norm",
    "head.out": "lm_head.decoder",
}
DENSE_CLASSIFIER: Names = {"head.dense": "classifier.dense", "head.out": "classifier.out_proj"}

ROBERTA = Architecture(
    name="roberta",
    prefix="roberta.",
    stacks={"encoder": ROBERTA_STACK},
    config=SPECIAL,
    needs=NEEDS,
    body=BODY,
    aliases={"lm_head.decoder.bias": ("lm_head.bias",)},
    ignored=BUFFERS,
    heads=(
        HeadTable("RobertaModel", {"kind": "embed", "dense": "tanh"}, POOLER),
        HeadTable("RobertaForMaskedLM", {**MLM, "dense": "gelu"}, ROBERTA_LM, "vocab"),
        HeadTable("RobertaForSequenceClassification", POOLED, DENSE_CLASSIFIER, "labels"),
        HeadTable("RobertaForMultipleChoice", {**POOLED, "kind": "choice"}, CLASSIFIER, 1),
        HeadTable("RobertaForTokenClassification", TAG, {"head.out": "classifier"}, "labels"),
        HeadTable("RobertaForQuestionAnswering", SPAN, QA_NAMES, 2),
    ),
)


def _narrow(theirs: Json) -> int:
    narrow, width = theirs.get("embedding_size", 128), theirs.get("hidden_size", 256)
    return 0 if narrow == width else int(narrow)


ELECTRA_STACK: Rows = {
    **STACK,
    "width": Key("hidden_size", 256),
    "heads": Key("num_attention_heads", 4),
    "ffn_width": Key("intermediate_size", 1024),
    "embedding_width": Rule(_narrow, lambda value, stack: {"embedding_size": value or stack.width}),
}
ELECTRA_GENERATOR: Names = {
    "head.dense": "generator_predictions.dense",
    "head.norm": "generator_predictions.LayerNorm",
    "head.out": "generator_lm_head",
}
ELECTRA_DISCRIMINATOR: Names = {
    "head.dense": "discriminator_predictions.dense",
    "head.out": "discriminator_predictions.dense_prediction",
}
ELECTRA = Architecture(
    name="electra",
    prefix="electra.",
    stacks={"encoder": ELECTRA_STACK},
    config=SPECIAL,
    needs={**NEEDS, "summary_type": ("first",), "summary_use_proj": (True,), "summary_activation": ("gelu",)},
    body={**BODY, "embedding.project": "embeddings_project"},
    ignored=BUFFERS,
    heads=(
        HeadTable("ElectraModel"),
        HeadTable("ElectraForMaskedLM", {**MLM, "dense": "gelu"}, ELECTRA_GENERATOR, "vocab"),
        # Replaced-token detection: one number a token, above zero where it was replaced.
        HeadTable(
            "ElectraForPreTraining", {"kind": "tag", "dense": ACTIVATION, "bias": True}, ELECTRA_DISCRIMINATOR, 1
        ),
        HeadTable("ElectraForSequenceClassification", {**POOLED, "dense": "gelu"}, DENSE_CLASSIFIER, "labels"),
        HeadTable(
            "ElectraForMultipleChoice",
            {"kind": "choice", "dense": "gelu", "bias": True, "dropout": Key("summary_last_dropout", 0.1)},
            {"head.dense": "sequence_summary.summary", "head.out": "classifier"},
            1,
        ),
        HeadTable("ElectraForTokenClassification", TAG, {"head.out": "classifier"}, "labels"),
        HeadTable("ElectraForQuestionAnswering", SPAN, QA_NAMES, 2),
    ),
)

ALBERT_STACK: Rows = {
    **STACK,
    "vocab": Key("vocab_size", 30000),
    "width": Key("hidden_size", 4096),
    "heads": Key("num_attention_heads", 64),
    "ffn_width": Key("intermediate_size", 16384),
    "embedding_width": Key("embedding_size", 128),
    "distinct_layers": Key("num_hidden_groups", 1),
    "feedforward": Key("hidden_act", "gelu_new", ACTIVATIONS_AND_ALIASES),
    "dropout": Key("hidden_dropout_prob", 0.0),
    "attention_dropout": Key("attention_probs_dropout_prob", 0.0),
}


def _number_labels(value: int, head: Any) -> Json:
    return {"id2label": {str(i): f"LABEL_{i}" for i in range(value)}}


GROUP = "encoder.albert_layer_groups.{i}.albert_layers.0"
ALBERT_ACTIVATION = Key("hidden_act", "gelu_new", ACTIVATIONS_AND_ALIASES)
ALBERT_MLM: Rows = {**MLM, "dense": ALBERT_ACTIVATION}
ALBERT_DROPOUT = Key("classifier_dropout_prob", 0.1)
ALBERT_POOLED: Rows = {**POOLED, "dropout": ALBERT_DROPOUT}
ALBERT_POOLER: Names = {"head.dense": "{prefix}pooler"}
ALBERT_PREDICTIONS: Names = {
    "head.dense": "predictions.dense",
    "head.norm": "predictions.LayerNorm",
    "head.out": "predictions.decoder",
}
ALBERT = Architecture(
    name="albert",
    prefix="albert.",
    stacks={"encoder": ALBERT_STACK},
    config=SPECIAL,
    needs={**NEEDS, "inner_group_num": (1,)},
    body={
        **EMBEDDING,
        "embedding.project": "encoder.embedding_hidden_mapping_in",
        "encoder.blocks.{i}.attention.qkv": Join(*(f"{GROUP}.attention.{part}" for part in ("query", "key", "value"))),
        "encoder.blocks.{i}.attention.out": f"{GROUP}.attention.dense",
        "encoder.blocks.{i}.attention_sub.norm": f"{GROUP}.attention.LayerNorm",
        "encoder.blocks.{i}.ffn.up": f"{GROUP}.ffn",
        "encoder.blocks.{i}.ffn.down": f"{GROUP}.ffn_output",
        "encoder.blocks.{i}.ffn_sub.norm": f"{GROUP}.full_layer_layer_norm",
    },
    aliases={"predictions.decoder.bias": ("predictions.bias",)},
    ignored=BUFFERS,
    heads=(
        HeadTable("AlbertModel", {"kind": "embed", "dense": "tanh"}, ALBERT_POOLER),
        HeadTable("AlbertForMaskedLM", ALBERT_MLM, ALBERT_PREDICTIONS, "vocab"),
        HeadTable(
            "AlbertForPreTraining",
            {
                **ALBERT_MLM,
                "sentence_outputs": Rule(lambda theirs: len(theirs.get("id2label") or "ab"), _number_labels),
            },
            {
                **ALBERT_PREDICTIONS,
                "head.sentence.dense": "{prefix}pooler",
                "head.sentence.out": "sop_classifier.classifier",
            },
            "vocab",
        ),
        HeadTable(
            "AlbertForSequenceClassification", ALBERT_POOLED, {**ALBERT_POOLER, "head.out": "classifier"}, "labels"
        ),
        HeadTable(
            "AlbertForMultipleChoice",
            {**ALBERT_POOLED, "kind": "choice"},
            {**ALBERT_POOLER, "head.out": "classifier"},
            1,
        ),
        HeadTable(
            "AlbertForTokenClassification", {**TAG, "dropout": ALBERT_DROPOUT}, {"head.out": "classifier"}, "labels"
        ),
        HeadTable("AlbertForQuestionAnswering", SPAN, QA_NAMES, 2),
    ),
)
