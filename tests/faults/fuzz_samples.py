"""What the fuzzer damages: sound samples of each area, and how a user uses them."""

import bz2
import gzip
import json
import lzma
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow
import pyarrow.parquet
import sentencepiece
import task_models
import torch
import zstandard
from fault_runs import tiny
from prepare_samples import TEXT, sample_files, sample_recipe

import qkv
from qkv.data import Problems
from qkv.data.dataset_stats import compute_stats
from qkv.data.readers import DataFiles, read
from qkv.inside.autoencoder.model import AutoencoderConfig, SparseAutoencoder
from qkv.inside.record import trace, trace_many
from qkv.inside.trace import Trace
from qkv.inside.trace_files import read_traces, write_traces
from qkv.inside.tuned_lens import TunedLens
from qkv.models.tables import presets
from qkv.render.learning_curves import draw_curves
from qkv.tasks.train import train
from qkv.text import Tokenizer
from qkv.train.recipe import recipe_file
from qkv.train.run.load import load_model

SENTENCE = "The quick fox, <s> [MASK] über 3.5 dogs\n"


def all_files(folder: Path) -> list[Path]:
    """Every file of a sample."""
    return sorted(path for path in folder.rglob("*") if path.is_file() or path.is_symlink())


@dataclass(frozen=True)
class Area:
    """A kind of input: `make` writes the sound samples, each in a folder of its own, and `use` uses one."""

    name: str
    make: Callable[[Path], None]
    use: Callable[[Path], None]
    files: Callable[[Path], list[Path]] = all_files


# -------------------------------------------------------------------- model folders


def make_models(folder: Path) -> None:
    """Our folders and Hugging Face folders, of every family."""
    seq2seq = task_models.seq2seq()
    seq2seq.save(folder / "seq2seq")
    tokenizer = task_models.seq2seq_tokenizer()
    for name in ("gpt2", "bert-tiny", "distilbert", "t5-small", "bart-base", "marian", "llama-3.1-8b", "qwen3-0.6b"):
        make_preset(name, tokenizer).export(folder / name)
    make_preset("gpt2", tokenizer).save(folder / "decoder")
    make_preset("bert-tiny", tokenizer).save(folder / "encoder")


def make_preset(name: str, tokenizer: Tokenizer) -> qkv.Model:
    """A published architecture in a tiny size."""
    config = presets.find_preset(name)
    sizes = {"vocab_size": tokenizer.vocab_size, "width": 16, "layers": 2, "heads": 2, "ffn_width": 32, "head_dim": 8}
    sizes |= {"kv_heads": 2, "num_layer_groups": 2, "embedding_width": 0, "max_positions": 64}
    stacks = {
        side: replace(stack, **sizes, sliding_window_layers=())
        for side in ("encoder", "decoder")
        if (stack := getattr(config, side)) is not None
    }
    outputs = tokenizer.vocab_size if config.head.kind in ("lm", "mlm") else config.head.outputs
    head = replace(config.head, outputs=outputs)
    special = {"pad_token_id": 0, "decoder_start_token_id": 1, "eos_token_ids": (2,)}
    return qkv.new(replace(config, **stacks, head=head, **special), tokenizer=tokenizer)


def use_model(folder: Path) -> None:
    """Load a model, and run it."""
    model = qkv.load(folder)
    ids = [[1, 2, 3, 4]]
    if model.config.family == "seq2seq":
        model.logits(ids, source=ids)
    else:
        model.logits(ids)
    if model.config.head.kind == "lm" and model.tokenizer is not None:
        model.generate("the fox", max_tokens=4, min_tokens=2, beam=2)


# -------------------------------------------------------------------- tokenizers


def make_tokenizers(folder: Path) -> None:
    """Each kind as tokenizer.json, and the older formats."""
    texts = [TEXT, TEXT.lower(), SENTENCE]
    roles = ["pad", "unk", "bos", "eos", "cls", "sep", "mask"]
    for kind in ("byte-bpe", "bpe", "wordpiece", "unigram", "char", "word"):
        made = Tokenizer.train(
            kind, iter(texts), 320, special_tokens=roles, num_sentinels=2, template="bert", min_frequency=1
        )
        made.save(folder / kind)
    vocabulary = json.loads((folder / "wordpiece" / "tokenizer.json").read_text())["model"]["vocab"]
    (folder / "vocab-txt").mkdir()
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *sorted(vocabulary)]
    (folder / "vocab-txt" / "vocab.txt").write_text("\n".join(dict.fromkeys(words)) + "\n", encoding="utf-8")
    config = {"do_lower_case": True, "added_tokens_decoder": {"1": {"content": "[UNK]", "special": True}}}
    (folder / "vocab-txt" / "tokenizer_config.json").write_text(json.dumps(config))
    model = json.loads((folder / "byte-bpe" / "tokenizer.json").read_text())["model"]
    (folder / "merges").mkdir()
    (folder / "merges" / "vocab.json").write_text(json.dumps(model["vocab"]), encoding="utf-8")
    merges = "#version: 0.2\n" + "\n".join(" ".join(pair) for pair in model["merges"])
    (folder / "merges" / "merges.txt").write_text(merges + "\n", encoding="utf-8")
    (folder / "text.txt").write_text("\n".join(texts * 20))
    for name, model_type, pieces in (("spiece.model", "unigram", 60), ("tokenizer.model", "bpe", 60)):
        sample = folder / name.partition(".")[0]
        sample.mkdir()
        sentencepiece.SentencePieceTrainer.train(
            input=str(folder / "text.txt"),
            model_prefix=str(sample / "made"),
            model_type=model_type,
            vocab_size=pieces,
            hard_vocab_limit=False,
            minloglevel=2,
        )
        (sample / "made.model").rename(sample / name)
        (sample / "made.vocab").unlink()
    (folder / "text.txt").unlink()


def use_tokenizer(folder: Path) -> None:
    """Load a tokenizer, and encode and decode with it."""
    tokenizer = Tokenizer.load(folder)
    ids = tokenizer.encode(SENTENCE)
    tokenizer.encode(SENTENCE, "a pair", parse_special_tokens=True)
    tokenizer.decode(ids)
    stream = tokenizer.stream()
    for token_id in ids:
        stream.push(token_id)
    stream.finish()
    tokenizer.encode_with_offsets(SENTENCE)
    assert len(tokenizer.fingerprint) == 32


# -------------------------------------------------------------------- recipes


def make_recipes(folder: Path) -> None:
    """The built-in recipes, and one with every key."""
    for name in recipe_file.builtin_recipes():
        (folder / name).mkdir()
        (folder / name / "recipe.toml").write_text(recipe_file.find_recipe(name)[0])
    (folder / "all").mkdir()
    recipe = replace(sample_recipe(folder, "classification"), model=replace(sample_recipe(folder, "seq2seq").model))
    (folder / "all" / "recipe.toml").write_text(recipe_file.to_toml(recipe))


def use_recipe(folder: Path) -> None:
    """Read a recipe with overrides, and write it again."""
    text = recipe_file.to_toml(recipe_file.read(folder / "recipe.toml", ["train.steps=3", "data.max_length=64"]))
    assert recipe_file.to_toml(recipe_file.loads(text)) == text


# -------------------------------------------------------------------- checkpoints


def make_runs(folder: Path) -> None:
    """A run that has stopped before its end, with two checkpoints."""
    run = folder / "stopped"
    files = folder.parent / "run-files"
    files.mkdir()
    sample_files(files)
    recipe = tiny(files, train={"num_workers": 0, "save_every": 3, "eval_every": 100})
    train(recipe)
    Path(recipe.run).rename(run)
    for name in ("config.json", "model.safetensors"):
        (run / name).unlink()


def use_run(folder: Path) -> None:
    """Load the newest checkpoint that can be read, and run its model."""
    model = load_model(folder)
    assert all(bool(torch.isfinite(parameter).all()) for parameter in model.network.parameters())
    load_model(folder / "checkpoints" / "step-000000010")


# -------------------------------------------------------------------- data files


def make_data(folder: Path) -> None:
    """A file of each format, plain and compressed."""
    files = folder.parent / "data-files"
    files.mkdir()
    sample_files(files)
    small = {name: (files / name).read_bytes()[:3000] for name in ("pairs.tsv", "moods.csv", "book.txt", "names.conll")}
    for name in ("questions.jsonl", "alike.jsonl", "chat.jsonl"):
        small[name] = b"\n".join((files / name).read_bytes().split(b"\n")[:8]) + b"\n"
    rows = [json.loads(line) for line in small["alike.jsonl"].splitlines()]
    small["rows.json"] = json.dumps(rows).encode()
    answers = [{"text": "b", "answer_start": 1}]
    paragraph = {"context": "abc", "qas": [{"question": "q", "id": "1", "answers": answers}]}
    small["squad.json"] = json.dumps({"data": [{"paragraphs": [paragraph] * 3}]}).encode()
    small["tree.conllu"] = b"# text = a\n1\ta\ta\tNOUN\t_\t_\t0\troot\t_\t_\n\n" * 4
    text = small["book.txt"]
    small |= {"book.txt.gz": gzip.compress(text, mtime=0), "book.txt.xz": lzma.compress(text)}
    small |= {"book.txt.bz2": bz2.compress(text), "book.txt.zst": zstandard.compress(text)}
    small["wide.csv"] = b'"a","b c",d\n"1\n2","x ""y""",3\n' * 20
    small["utf16.txt"] = text.decode().encode("utf-16")
    for name, content in small.items():
        (folder / name.replace(".", "-")).mkdir()
        (folder / name.replace(".", "-") / name).write_bytes(content)
    (folder / "parquet").mkdir()
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), folder / "parquet" / "rows.parquet")
    (folder / "aligned").mkdir()
    for name in ("a.en", "a.de"):
        (folder / "aligned" / name).write_bytes((files / name).read_bytes()[:2000])


def use_data(folder: Path) -> None:
    """Read all records, and survey the files."""
    paths = [str(folder / name) for name in ("a.en", "a.de")] if folder.name == "aligned" else str(folder)
    for record in read(paths, problems=Problems(max_invalid_fraction=1)):
        assert record.fields
    compute_stats(DataFiles(paths))


# -------------------------------------------------------------------- files of activations


def make_inside(folder: Path) -> None:
    """A trace, a folder of traces, a tuned lens, a sparse autoencoder, and the log of a run."""
    network = make_preset("gpt2", task_models.seq2seq_tokenizer()).network
    found = trace(network, [1, 2, 3], sites=["decoder.*.pattern", "logits"])
    for name in ("trace", "traces", "lens", "autoencoder", "curves"):
        (folder / name).mkdir()
    found.save(folder / "trace" / "file.safetensors")
    write_traces(folder / "traces", trace_many(network, [[1, 2], [3, 4, 5]], sites="*.resid_post"))
    TunedLens(["decoder.0.resid_post", "decoder.1.resid_post"], 16).save(folder / "lens" / "file.safetensors")
    SparseAutoencoder(AutoencoderConfig(width=8, features=16, k=2)).save(folder / "autoencoder" / "file.safetensors")
    lines = [{"kind": "step", "step": step, "loss": 3.0 - step / 10} for step in range(1, 9)]
    lines += [{"kind": "eval", "step": step, "loss": 3.0, "accuracy": 0.5} for step in (4, 8)]
    (folder / "curves" / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def use_inside(folder: Path) -> None:
    """Load a file of activations, and draw curves."""
    file = folder / "file.safetensors"
    match folder.name:
        case "trace":
            Trace.load(file)
        case "traces":
            list(read_traces(folder))
        case "lens":
            TunedLens.load(file)("decoder.0.resid_post", torch.zeros(2, 16))
        case "autoencoder":
            SparseAutoencoder.load(file)(torch.zeros(2, 8))
        case _:
            draw_curves({"run": folder}, folder / "curves.svg")


AREAS = {
    area.name: area
    for area in (
        Area("model", make_models, use_model),
        Area("tokenizer", make_tokenizers, use_tokenizer),
        Area("recipe", make_recipes, use_recipe),
        Area("checkpoint", make_runs, use_run),
        Area("data", make_data, use_data),
        Area("inside", make_inside, use_inside),
    )
}
