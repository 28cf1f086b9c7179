"""The config fields, recipe keys and command-line options are listed here, so that a new one needs a change here."""

from dataclasses import fields

from recipe_schema import render_schema

from qkv.blocks import HeadConfig, RotaryScaling, StackConfig
from qkv.cli import COMMANDS, make_app
from qkv.cli.recipe import schema_text
from qkv.models import Config
from qkv.train.recipe.schema import Recipe

STACK = """
vocab_size width layers heads ffn_width kv_heads head_dim embedding_width embedding_window num_layer_groups
position max_positions position_offset rotary_base rotary_base_sliding rotary_fraction rotary_scaling
relative_buckets relative_max_distance
sliding_window sliding_window_layers
block attention norm norm_placement norm_affine norm_eps embedding_norm qk_norm feedforward experts
experts_per_token router_softmax balance_loss router_z_loss bias residual score_scale
score_cap attention_sinks value_residual layer_scale embedding_scale mask_token_id token_types
recurrent_attention
dropout attention_dropout ffn_dropout drop_path init init_std
"""
HEAD = """
kind outputs labels pool dense dense_bias dense_norm tied bias scale logit_cap normalize tags_in_order multi_label
temperature threshold out_of_scope next_sentence_classes future_tokens one_hot_positions dropout
"""
CONFIG = """
encoder decoder head front_ends back_ends share_embeddings pad_token_id decoder_start_token_id eos_token_ids
architecture reads_sentences reads_pairs task text_processor
"""
SCALING = """
kind factor low_freq_factor high_freq_factor original_max_positions beta_slow beta_fast attention_factor
"""
RECIPE = {
    "run": "",
    "plugins": "",
    "data": """
    train valid test valid_fraction valid_split_by format columns encoding modality records_key max_score mix
    epoch_examples
    max_length max_source_length too_long augment layout max_invalid_fraction cache_dir
    """,
    "tokenizer": "from_ kind vocab_size lowercase min_frequency image_codes",
    "model": """
    preset from_ family overrides vectors share_embeddings tie_embeddings freeze lora_rank lora_alpha lora_targets
    """,
    "objective": """
    kind label_smoothing mask_prob mean_span_length whole_word_masking permute_sentences random_offset add_bos_eos
    label_subwords out_of_scope overlap temperature caption_dropout mix_images
    """,
    "train": """
    steps minutes epochs cpu_minutes batch_tokens micro_batch_tokens
    optimizer lr head_lr_factor fit_head betas eps momentum weight_decay weight_decay_on max_grad_norm
    schedule warmup decay_fraction final_lr_ratio
    precision residual_dtype compile gradient_checkpointing seed device num_threads num_workers parallel tensor_parallel
    log_every eval_every eval_examples max_eval_fraction metric eval_beam patience trackers
    save_every keep_checkpoints ema_decay average_checkpoints final on_nonfinite
    """,
}

OPTIONS = {
    "bench": ["--device", "--dtype", "--int4", "--int8", "--json", "--picture", "--seconds", "--train"],
    "chat": [
        *("--device", "--int8", "--json", "--max-tokens", "--seed", "--special", "--system", "--temperature"),
        *("--template", "--top-p"),
    ],
    "info": ["--context", "--json"],
    "models": ["--json", "--prune", "--yes"],
    "import": ["--json", "--out"],
    "look": [
        *("--beam", "--device", "--heads", "--json", "--layers", "--length", "--map", "--mask", "--max-tokens"),
        *("--out", "--target"),
    ],
    "doctor": ["--json"],
    "report": ["--curve-minutes", "--device", "--json", "--limit", "--out", "--seconds"],
    "export": ["--dtype", "--format", "--json"],
    "run": [
        *("--align", "--batch-size", "--beam", "--count", "--device", "--draft", "--guidance", "--int4", "--int8"),
        *("--json", "--length-penalty", "--max-tokens", "--must-answer", "--out", "--prefix", "--prompt", "--seed"),
        *(
            "--sentences",
            "--speaker",
            "--speed",
            "--srt",
            "--stop",
            "--temperature",
            "--threshold",
            "--too-long",
            "--top",
            "--top-k",
            "--top-p",
        ),
    ],
    "data": [
        *("--columns", "--encoding", "--examples", "--format", "--json", "--max-length", "--picture", "--records-key"),
        *("--split", "--test", "--tokenizer", "--valid"),
    ],
    "eval": [
        *(
            "--baseline",
            "--batch-size",
            "--beam",
            "--columns",
            "--device",
            "--encoding",
            "--format",
            "--int4",
            "--int8",
        ),
        "--json",
        *("--limit", "--metric", "--records-key", "--resamples", "--samples", "--split", "--test", "--valid"),
    ],
    "study": ["--jobs", "--json", "--match", "--metric", "--out", "--seeds", "--tune", "--vary"],
    "studio": ["--autoencoder", "--browser", "--device", "--examples", "--json", "--log-file", "--port", "--runs"],
    "train": ["--dry-run", "--json", "--minutes", "--processes"],
    "index": [
        *("--batch-size", "--device", "--dtype", "--json", "--max-tokens", "--model", "--out", "--pooling"),
        "--rebuild",
    ],
    "lab": ["--again", "--all", "--book", "--data", "--json", "--out", "--seed", "--seeds", "--size"],
    "search": ["--device", "--json", "--method", "--model", "--top"],
    "init": [
        *("--columns", "--encoding", "--format", "--from", "--json", "--minutes", "--modality", "--out"),
        *("--records-key", "--shape", "--test", "--valid"),
    ],
    "serve": [
        *("--allowed-hosts", "--body-seconds", "--cache-mib", "--constraint-seconds", "--cors-origins", "--device"),
        *("--drain-seconds", "--dtype", "--gather-seconds", "--header-seconds", "--host", "--insecure", "--json"),
        *("--keys", "--log-file", "--log-texts", "--max-body-bytes", "--max-choices", "--max-chunks-per-second"),
        *("--max-connections", "--max-connections-per-address", "--max-queue", "--max-sequences", "--max-texts"),
        *("--max-tokens", "--max-trace-bytes", "--max-unsent-bytes", "--min-free-mib", "--port", "--precision"),
        *("--request-seconds", "--write-seconds"),
    ],
    "new-key": ["--json"],
    "verify-resume": ["--json", "--steps"],
    "push": ["--format", "--json", "--private"],
    "recipe": ["--json"],
    "completion": ["--json"],
}


def names(cls: type) -> list[str]:
    return [f.name for f in fields(cls)]


def test_config_fields_are_frozen() -> None:
    assert names(StackConfig) == STACK.split()
    assert names(HeadConfig) == HEAD.split()
    assert names(Config) == CONFIG.split()
    assert names(RotaryScaling) == SCALING.split()


def test_the_fields_of_a_recipe_are_frozen() -> None:
    assert names(Recipe) == list(RECIPE)
    for section, expected in RECIPE.items():
        held = getattr(Recipe(), section)
        assert not expected or names(type(held)) == expected.split(), section


def test_the_schema_for_editors_has_these_keys() -> None:
    assert schema_text() == render_schema(), "run python docs/recipe_schema.py"


def test_verbs_and_options_are_frozen() -> None:
    found = {}
    for verb in {*OPTIONS, *COMMANDS}:
        arguments = make_app([verb])[verb].assemble_argument_collection(parse_docstring=False)
        found[verb] = sorted(n for a in arguments for n in a.names if n.startswith("--") and not n.startswith("--no-"))
    assert found == OPTIONS


def test_every_verb_has_json_and_an_example() -> None:
    for verb in OPTIONS:
        assert "--json" in OPTIONS[verb]
        assert f"qkv {verb}" in (make_app([verb])[verb].help or ""), f"the help of {verb} shows no example"
