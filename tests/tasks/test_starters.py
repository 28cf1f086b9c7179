"""What `qkv init` writes: every starter parses, is sound, and prepares on files as users have them."""

import gzip
import random
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
from prepare_samples import KINDS

import qkv
from qkv.blocks import HeadConfig
from qkv.data import DataFiles, Problems
from qkv.errors import QkvError, UsageError
from qkv.models.tables.presets import find_preset
from qkv.store.huggingface import find_hf_export
from qkv.store.sentence_transformers import find_transformer_export
from qkv.tasks.prepare.guess_columns import AmbiguousColumns, find_readings
from qkv.tasks.prepare.prepare import prepare
from qkv.tasks.prepare.sources import open_sources
from qkv.tasks.starters.files import first_records
from qkv.tasks.starters.recipe import starter_recipe
from qkv.tasks.starters.sizes import DATA_SIZES, MIN_LABEL_STEPS, SHAPES, Machine, choose_size
from qkv.tasks.table import find_starters
from qkv.text import Tokenizer
from qkv.train.recipe.check import check_recipe
from qkv.train.recipe.recipe_file import loads, read
from qkv.train.recipe.schema import DataSection, Recipe

STARTERS = find_starters()
FROM_FILES = [name for name, one in STARTERS.items() if one.objective in KINDS]  # and not from images


@pytest.mark.parametrize("task", STARTERS)
def test_a_starter_without_files_is_a_sound_recipe(task: str) -> None:
    text = starter_recipe(task)
    recipe = loads(text)
    check_recipe(recipe)
    assert recipe.run == f"runs/{task}"
    assert recipe.objective.kind == STARTERS[task].objective


@pytest.mark.parametrize("task", STARTERS)
def test_every_key_has_a_comment(task: str) -> None:
    lines = [line for line in starter_recipe(task).splitlines() if "=" in line]
    assert len(lines) > 8
    assert all("  # " in line for line in lines)


@pytest.mark.parametrize("task", STARTERS)
def test_what_is_commented_out_is_right_too(task: str) -> None:
    """Each `# key = value` line, taken in, still gives a recipe that can be read."""
    for line in starter_recipe(task).splitlines():
        if line.startswith("# ") and " = " in line:
            tomllib.loads(line.removeprefix("# "))
            loads(starter_recipe(task).replace(line, line.removeprefix("# ")))


@pytest.mark.parametrize("task", FROM_FILES)
def test_a_starter_for_files_prepares(task: str, folder: Path, tmp_path: Path) -> None:
    file = str(folder / KINDS[STARTERS[task].objective])
    (tmp_path / "mine.toml").write_text(starter_recipe(task, [file]), encoding="utf-8")
    small = ["model.width=32", "model.layers=1", "tokenizer.vocab_size=420", "train.eval_examples=3"]
    recipe = read(tmp_path / "mine.toml", [f"data.cache_dir={folder / 'cache'}", *small])
    assert recipe.data.train == file
    prepared = prepare(recipe)
    assert prepared.valid_records


def test_files_side_by_side_become_fields(folder: Path) -> None:
    recipe = loads(starter_recipe("translate", [str(folder / "a.en"), str(folder / "a.de")], run="runs/mine"))
    assert recipe.data.train == {"source": str(folder / "a.en"), "target": str(folder / "a.de")}
    assert recipe.run == "runs/mine"


def test_two_files_of_lines_are_a_source_and_its_target(folder: Path, tmp_path: Path) -> None:
    """Whatever they are called: a file of lines alone holds no pairs."""
    for names in (("left.en", "right.de"), ("left.txt", "right.txt"), ("left", "right")):
        files = [str(tmp_path / name) for name in names]
        for file, given in zip(files, ("a.en", "a.de"), strict=True):
            Path(file).write_bytes((folder / given).read_bytes())
        assert loads(starter_recipe("translate", files)).data.train == {"source": files[0], "target": files[1]}
        assert loads(starter_recipe("embed", files)).data.train == {"first": files[0], "second": files[1]}


def test_files_by_field(folder: Path, tmp_path: Path) -> None:
    files = {"target": str(folder / "a.de"), "source": str(folder / "a.en")}
    text = starter_recipe("translate", files)
    assert "aligned line by line" in text
    assert loads(text).data.train == files
    (tmp_path / "mine.toml").write_text(text, encoding="utf-8")
    small = ["model.width=32", "model.layers=1", "tokenizer.vocab_size=420", f"data.cache_dir={folder / 'cache'}"]
    record = prepare(read(tmp_path / "mine.toml", small)).valid_records[0].fields
    assert record["source"].upper() == record["target"] != record["source"]


def test_files_by_a_field_that_is_none_or_without_one_that_is_needed(folder: Path) -> None:
    with pytest.raises(UsageError, match="seq2seq has no field 'sauce'; did you mean 'source'"):
        starter_recipe("translate", {"sauce": str(folder / "a.en"), "target": str(folder / "a.de")})
    with pytest.raises(UsageError, match="seq2seq also needs a file for target; add target=FILE"):
        starter_recipe("translate", {"source": str(folder / "a.en")})


def test_a_file_whose_name_tells_no_format_is_read_by_its_content(folder: Path, tmp_path: Path) -> None:
    assert loads(starter_recipe("language", [str(folder / "a.en")])).data.train == str(folder / "a.en")
    (tmp_path / "a.dat").write_bytes(b"\0\1\2")
    with pytest.raises(UsageError, match=r"a\.dat has no known extension; set the format \(--format, or data\.format"):
        starter_recipe("language", [str(tmp_path / "a.dat")])


def test_columns_with_other_names_are_filled_in(folder: Path) -> None:
    known = loads(starter_recipe("classify", [str(folder / "two.jsonl")]))
    assert known.data.columns == {"text": "premise", "second": "hypothesis", "label": "label"}
    text = starter_recipe("translate", [str(folder / "languages.tsv")])
    assert loads(text).data.columns == {"source": "en", "target": "de"}
    assert "please check" in text


def test_a_built_in_dataset() -> None:
    recipe = loads(starter_recipe("translate", ["dates"]))
    assert recipe.data.train == "dates"
    check_recipe(recipe)


LAPTOP = Machine(cores=2, memory_bytes=24e9)
SERVER = Machine(cores=16, memory_bytes=80e9, gpu="a GPU")


def test_sizes_follow_data_machine_and_minutes(folder: Path, tmp_path: Path) -> None:
    def width(file: Path, machine: Machine, minutes: float = 0.0) -> int:
        recipe = loads(starter_recipe("language", [str(file)], machine=machine, minutes=minutes))
        assert recipe.train.minutes == (minutes or recipe.train.minutes) > 0
        return recipe.model.overrides["width"]

    big = tmp_path / "big.txt"
    with big.open("wb") as out:
        out.write(b"a line of text\n")
        out.truncate(3 * 10**8)  # a hole: large, and costs nothing
    assert width(folder / "book.txt", SERVER) == SHAPES[0].width
    assert width(big, SERVER) == SHAPES[3].width
    assert width(big, LAPTOP) == width(big, replace(LAPTOP, has_bfloat16=True), minutes=30) == SHAPES[2].width
    assert width(big, LAPTOP, minutes=1) == SHAPES[0].width


def test_a_language_model_reads_little_data_ten_times_at_most(folder: Path) -> None:
    recipes = {task: loads(starter_recipe(task, [str(folder / "book.txt")])) for task in ("language", "fill")}
    assert (recipes["language"].train.epochs, recipes["fill"].train.epochs) == (10, 0)


def test_two_stacks_are_more_parameters_for_the_same_time() -> None:
    one, two = (choose_size(1e7, LAPTOP, 10, num_stacks=count) for count in (1, 2))
    assert one.width > two.width


def test_a_classifier_of_little_data_does_not_memorise_it(folder: Path, tmp_path: Path) -> None:
    """It has much dropout, and few passes over the data, however much time there is."""
    file = tmp_path / "reviews.csv"

    def recipe(num_lines: int) -> Recipe:
        file.write_text("text,label\n" + "a text that has a label,yes\nnone,no\n" * (num_lines // 2), encoding="utf-8")
        return loads(starter_recipe("classify", [str(file)], machine=LAPTOP, minutes=60))

    tiny, little, much = recipe(20), recipe(20_000), recipe(200_000)
    assert (little.train.minutes, little.train.epochs) == (60, 10)
    assert tiny.train.epochs == MIN_LABEL_STEPS  # one step takes all of its data
    assert little.model.overrides["dropout"] == little.model.overrides["head"]["dropout"]
    assert much.model.overrides["dropout"] < little.model.overrides["dropout"]
    assert 0 < little.train.ema_decay < 1


def test_a_run_with_a_long_name(folder: Path) -> None:
    run = "runs/" + "a-long-name-" * 5
    assert loads(starter_recipe("language", [str(folder / "book.txt")], run=run)).run == run


def test_batches_are_small_where_time_or_memory_is_short() -> None:
    assert choose_size(1e9, SERVER).batch_tokens == SHAPES[3].batch_tokens
    assert choose_size(1e9, replace(SERVER, memory_bytes=8e9)).batch_tokens < SHAPES[3].batch_tokens
    assert 1024 <= choose_size(1e9, LAPTOP, minutes=1).batch_tokens < choose_size(1e9, LAPTOP).batch_tokens


@pytest.mark.parametrize("task", STARTERS)
def test_a_step_has_at_least_one_sequence_however_short_the_time(task: str) -> None:
    recipe = loads(starter_recipe(task, machine=LAPTOP, minutes=0.1))
    assert recipe.train.batch_tokens >= recipe.data.max_length + recipe.data.max_source_length


@pytest.fixture(scope="module")
def trained(folder: Path) -> str:
    """A small trained encoder."""
    tokenizer = Tokenizer.train("byte", iter([]), vocab_size=270, special_tokens=["pad", "cls", "sep", "mask"])
    tiny = find_preset("bert-tiny")
    stack = replace(tiny.stack, vocab_size=tokenizer.vocab_size, width=32, heads=2, head_dim=0, layers=4)
    stack = replace(stack, num_layer_groups=0, kv_heads=0, ffn_width=32)
    head = HeadConfig(kind="embed", pool="mean", normalize=True)
    model = qkv.new(replace(tiny, encoder=stack, head=head), tokenizer=tokenizer)
    model.save(folder / "trained")
    return str(folder / "trained")


def test_fine_tuning_has_no_shape_keys_and_prepares(folder: Path, tmp_path: Path, trained: str) -> None:
    file = str(folder / KINDS["classification"])
    text = starter_recipe("classify", [file], base_model=trained, machine=LAPTOP)
    (tmp_path / "mine.toml").write_text(text, encoding="utf-8")
    recipe = read(tmp_path / "mine.toml", [f"data.cache_dir={folder / 'cache'}"])
    assert recipe.model.from_ == trained
    assert not recipe.model.overrides
    assert not recipe.model.freeze
    assert (recipe.train.epochs, recipe.train.minutes, recipe.train.lr) == (5, 0.0, 1e-4)
    assert (recipe.train.fit_head, recipe.train.head_lr_factor) == (True, 1)  # the new head is fitted first
    prepared = prepare(recipe)
    assert (prepared.config.head.pool, prepared.config.head.dense) == ("mean", "none")  # as the embedder was trained
    assert not any("tensors of other heads" in note for note in prepared.notes)


@pytest.mark.parametrize("task", FROM_FILES)
def test_the_exportable_shape_can_be_exported(task: str, folder: Path, tmp_path: Path) -> None:
    file = str(folder / KINDS[STARTERS[task].objective])
    (tmp_path / "mine.toml").write_text(starter_recipe(task, [file], shape="exportable"), encoding="utf-8")
    small = ["model.width=32", "model.layers=1", "tokenizer.vocab_size=420", "train.eval_examples=3"]
    config = prepare(read(tmp_path / "mine.toml", [f"data.cache_dir={folder / 'cache'}", *small])).config
    target = find_transformer_export(config) if config.head.kind == "embed" else find_hf_export(config)
    assert target.architecture.name in ("marian", "bert", "llama", "t5", "bart")


def test_what_cannot_be() -> None:
    with pytest.raises(UsageError, match="did you mean 'translate'"):
        starter_recipe("translat")
    with pytest.raises(UsageError, match=r"seq2seq needs 2 \(source, target\)"):
        find_readings("seq2seq", ["only"])


@pytest.mark.parametrize(
    ("first", "columns"),
    [
        ("the man sees a cat\tder Mann sieht eine Katze", 'columns = {source = "0", target = "1"}'),
        ("Who?\tWer?", 'columns = {source = "0", target = "1"}'),
        ("en\tde", 'columns = {source = "en", target = "de"}'),
    ],
)
def test_a_table_without_a_header_is_read_from_its_first_line(first: str, columns: str, tmp_path: Path) -> None:
    file = tmp_path / "pairs.tsv"
    file.write_text(f"{first}\n" + "a dog\tein Hund\n" * 9, encoding="utf-8")
    assert columns in starter_recipe("translate", [str(file)])


def test_the_same_pairs_get_the_same_tokenizer_however_they_are_kept(tmp_path: Path) -> None:
    """In one table, in one with a column of numbers that nobody learns, or in two files."""
    pairs = [(f"le {n} mars", f"March {n}") for n in range(1, 29)]
    (tmp_path / "p.tsv").write_text("source\ttarget\n" + "".join(f"{a}\t{b}\n" for a, b in pairs))
    long = "x" * 300
    (tmp_path / "q.tsv").write_text("source\ttarget\tnote\n" + "".join(f"{a}\t{b}\t{long}\n" for a, b in pairs))
    for place, name in enumerate(("p.fr", "p.en")):
        (tmp_path / name).write_text("".join(f"{pair[place]}\n" for pair in pairs))
    sides = {"source": str(tmp_path / "p.fr"), "target": str(tmp_path / "p.en")}
    for files in ([str(tmp_path / "p.tsv")], [str(tmp_path / "q.tsv")], sides, list(sides.values())):
        assert 'kind = "char"' in starter_recipe("translate", files), files


def test_columns_of_real_tables_are_recognised_or_guessed_by_their_values(tmp_path: Path) -> None:
    header = "pair_ID\tsentence_A\tsentence_B\trelatedness_score\tentailment_judgment\n"
    rows = "".join(f"{n}\tA man runs {n}.\tA dog sits {n}.\t{n % 5}.5\t{'YES' if n % 2 else 'NO'}\n" for n in range(30))
    table = tmp_path / "sick.txt"
    table.write_text(header + rows)
    columns = loads(starter_recipe("classify", [str(table)])).data.columns
    assert columns == {"text": "sentence_A", "second": "sentence_B", "label": "entailment_judgment"}
    embed = loads(starter_recipe("embed", [str(table)])).data
    assert (embed.columns["score"], embed.max_score) == ("relatedness_score", 5.0)
    table.write_text(rows)
    columns = loads(starter_recipe("classify", [str(table)])).data.columns
    assert columns == {"text": "1", "second": "2", "label": "4"}
    columns = loads(starter_recipe("embed", [str(table)])).data.columns
    assert columns == {"first": "1", "second": "2", "score": "3"}, "the numbers of the pairs are no texts"


def test_guessed_columns_leave_out_ids_and_tell_scores_from_labels(tmp_path: Path) -> None:
    table = tmp_path / "pairs.csv"
    table.write_text("".join(f"A man runs {n}.,A dog sits {n}.,{n % 3}.{n % 2}\n" for n in range(30)))
    columns = loads(starter_recipe("classify", [str(table)])).data.columns
    assert columns == {"text": "0", "second": "1", "score": "2"}
    queries = tmp_path / "queries.jsonl"
    queries.write_text('{"orig_id": "001", "text": "what is lift"}\n')
    with pytest.raises(UsageError, match=r"columns orig_id, text, but contrastive needs 2 \(first, second\)"):
        starter_recipe("embed", [str(queries)])


def make_rows(row: str) -> str:
    """Thirty rows of a template: n is a number, mod one of three, and words and texts differ from row to row."""
    rng = random.Random(0)
    words = ["".join(chr(97 + rng.randrange(26)) for _ in range(6)) for _ in range(400)]

    def text(length: int) -> str:
        return " ".join(rng.choice(words) for _ in range(length))

    texts = {"title": 6, "long": 60, "mid": 15, "name": 2}
    return "".join(
        row.format(
            n=n, mod=n % 3, two="yn"[n % 2], word=words[n], next=words[n + 1], **{k: text(v) for k, v in texts.items()}
        )
        + "\n"
        for n in range(10, 40)
    )


@pytest.mark.parametrize(
    ("kind", "header", "row", "columns"),
    [
        # Names first, and never an id, the name of a file or a few words as a text.
        (
            "seq2seq",
            "fname,dialogue,summary,topic",
            "train_{n},{long},{mid},{name}",
            {"source": "dialogue", "target": "summary"},
        ),
        ("seq2seq", "img,caption,note", "a{n}.jpg,{title},{mid}", {"source": "caption", "target": "note"}),
        ("seq2seq", "en,fr,attribution", "{mid},{mid},CC-BY 2.0 {name}", {"source": "en", "target": "fr"}),
        ("causal_lm", "url,author,review_text", "https://x.y/{n},{name},{long}", {"text": "review_text"}),
        # A number beside two texts is a score, wherever it is.
        ("contrastive", "0,1,2", "{n}.5,{title},{title}", {"first": "1", "second": "2", "score": "0"}),
        ("contrastive", "0,1,2", "{title},{n}.5,{title}", {"first": "0", "second": "2", "score": "1"}),
        ("contrastive", "0,1,2,3", "{n},{mod}.{mod},{title},{title}", {"first": "2", "second": "3", "score": "1"}),
        ("contrastive", "0,1,2", "{word},{next},{mod}.0", {"first": "0", "second": "1", "score": "2"}),
        ("contrastive", "0,1,2", "w{mod},v{two},{mod}.0", {"first": "0", "second": "1", "score": "2"}),
        # Two texts that belong together, and a title, are not lost.
        (
            "classification",
            "qtext,label,atext",
            "{title},{two},{long}",
            {"text": "qtext", "second": "atext", "label": "label"},
        ),
        ("classification", "title,text,label", "{title},{long},{mod}", {"text": "title + text", "label": "label"}),
        ("classification", "0,1,2", "{mod},{title},{long}", {"text": "1 + 2", "label": "0"}),
        (
            "classification",
            "Class Index,Title,Description",
            "{mod},{title},{long}",
            {"text": "Title + Description", "label": "Class Index"},
        ),
        (
            "classification",
            "utterance,intent_id",
            "set an alarm {n},{mod}",
            {"text": "utterance", "label": "intent_id"},
        ),
        ("classification", "user_id,post,mood", "u{mod},a fine day {n},m{mod}", {"text": "post", "label": "mood"}),
        (
            "classification",
            "remark,at,stars",
            "it works {n},2021-05-03 10:{n},{mod}",
            {"text": "remark", "label": "stars"},
        ),
        ("classification", "review,clean,mood", "So good {n}!,so good {n},{mod}", {"text": "review", "label": "mood"}),
        (
            "classification",
            "a,b,mood",
            "不错的天气{n},今天天气好{n},{mod}",
            {"text": "a", "second": "b", "label": "mood"},
        ),
        ("classification", "w1,w2,rel", "{word},{next},{mod}", {"text": "w1", "second": "w2", "label": "rel"}),
        ("seq2seq", "text_en,text_id", "good morning {n},selamat pagi {n}", {"source": "text_en", "target": "text_id"}),
    ],
)
def test_guessed_columns(kind: str, header: str, row: str, columns: dict[str, str], tmp_path: Path) -> None:
    table = tmp_path / "table.csv"
    table.write_text(f"{header}\n" + make_rows(row))
    assert find_readings(kind, header.split(","), first_records(DataFiles(str(table)))) == [columns]


@pytest.mark.parametrize(
    ("kind", "header", "row", "rivals"),
    [
        ("classification", "text,sentiment,topic", "{mid},{two},{mod}", [{"label": "sentiment"}, {"label": "topic"}]),
        ("classification", "0,1,2", "{mid},{two},{mod}", [{"label": "1"}, {"label": "2"}]),
        (
            "seq2seq",
            "en,de,fr",
            "{mid},{mid},{mid}",
            [{"source": "en", "target": "de"}, {"source": "en", "target": "fr"}],
        ),
        (
            "seq2seq",
            "context,question,answer",
            "{long},{title},{name}",
            [{"source": "question"}, {"source": "question + context"}],
        ),
    ],
)
def test_two_likely_readings_are_shown_with_two_records(
    kind: str, header: str, row: str, rivals: list[dict[str, str]], tmp_path: Path
) -> None:
    table = tmp_path / "table.csv"
    table.write_text(f"{header}\n" + make_rows(row))
    task = "classify" if kind == "classification" else "translate"
    with pytest.raises(AmbiguousColumns, match=r"table\.csv: there are \d ways to read the columns") as raised:
        starter_recipe(task, [str(table)])
    found = raised.value.readings
    assert all(any(rival.items() <= one.items() for one in found) for rival in rivals)
    for name, column in found[0].items():
        assert f"{name}={column}" in str(raised.value)
    assert str(raised.value).count(f"{next(iter(found[0]))}: ") == 2 * len(found)
    starter_recipe(task, [str(table)], reading=DataSection(columns=found[1]))


def test_a_label_and_its_number_are_one_reading(tmp_path: Path) -> None:
    table = tmp_path / "table.csv"
    table.write_text("phrase,number,name\n" + "".join(f"so it is {n} again,{n % 2},{'ab'[n % 2]}\n" for n in range(30)))
    notes: list[str] = []
    assert loads(starter_recipe("classify", [str(table)], notes=notes)).data.columns == {
        "text": "phrase",
        "label": "name",
    }
    assert notes == ["not read: number"]


def test_a_joined_field_has_the_texts_of_its_columns(tmp_path: Path) -> None:
    news, rows = tmp_path / "news.csv", make_rows("{title},{long},{mod}")
    news.write_text("title,body,label\n" + rows)
    recipe = loads(starter_recipe("classify", [str(news)]))
    records = list(
        open_sources(replace(recipe, data=replace(recipe.data, valid_fraction=0.0))).train[""].records(Problems())
    )
    assert records[0].fields["text"] == " ".join(rows.splitlines()[0].split(",")[:2])
    assert records[0].fields.keys() == {"text", "label"}


def test_a_first_record_without_a_label_is_no_reason_to_refuse_a_file(tmp_path: Path) -> None:
    file = tmp_path / "some.jsonl"
    rows = "".join(f'{{"review": "a long text {n}", "mood": "{"ab"[n % 2]}"}}\n' for n in range(20))
    file.write_text('{"review": "no mood"}\n' + rows)
    columns = loads(starter_recipe("classify", [str(file)])).data.columns
    assert columns == {"text": "review", "label": "mood"}


@pytest.mark.parametrize(
    ("task", "name", "text", "message"),
    [
        ("tag", "a.csv", "text,label\nAnna sleeps,x\nBen runs,y\n", r"no record has as many words as tags"),
        ("tag", "a.jsonl", '{"tokens": ["Anna"], "tags": []}\n', r"give a CoNLL file .* or JSON Lines"),
        ("tag", "a.txt", "Anna sleeps\n", r"whose lines are one column, .* tagging needs 2 .* give a CoNLL file"),
        ("answer", "a.txt", "Anna sleeps\n", r"question_answering needs 4 .* give a file in SQuAD's format"),
        ("classify", "a.csv", "text,label\n" + "so it is,x\n" * 9, r"all labels are x, .* at least two classes"),
        ("classify", "b.jsonl", '{"text": "so", "label": ""}\n' * 9, r"(?s)no usable records.*the label is empty"),
    ],
)
def test_init_refuses_data_that_training_would_refuse(
    task: str, name: str, text: str, message: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(QkvError, match=message):
        starter_recipe(task, [str(tmp_path / name)])


@pytest.mark.parametrize(
    ("task", "name", "lines", "command"),
    [
        ("classify", "a b.txt", ["1 a good film", "0 a bad film"] * 9, r"perl -pe 's/ /\t/' 'FOLDER/a b.txt' > 'a b-"),
        ("translate", "a.txt.gz", ["ON  AA N", "OX  AA K S"], r"gzip -dc FOLDER/a.txt.gz | perl -pe 's/  /\t/' > a-"),
        ("translate", "a.txt", ["go ||| geh", "run ||| renn"], r"perl -pe 's/ \|\|\| /\t/' FOLDER/a.txt > a-col"),
        ("translate", "a.txt", ["go / geh", "run / renn"], r"perl -pe 's/ \/ /\t/' FOLDER/a.txt > a-columns.tsv"),
        (
            "translate",
            "a.txt",
            ["go ' geh", "run ' renn"],
            r"""perl -pe 's/ '"'"' /\t/' FOLDER/a.txt > a-columns.tsv""",
        ),
        ("translate", "a.txt", ["I said, hello"], "where SEPARATOR is the text between them now"),
        ("translate", "a.txt", ["to be", "or not"], "where SEPARATOR is the text between them now"),
    ],
)
def test_lines_of_text_get_the_command_that_makes_a_table_of_them(
    task: str, name: str, lines: list[str], command: str, tmp_path: Path
) -> None:
    text = "".join(f"{line}\n" for line in lines).encode()
    (tmp_path / name).write_bytes(gzip.compress(text) if name.endswith(".gz") else text)
    with pytest.raises(UsageError) as error:
        starter_recipe(task, [str(tmp_path / name)])
    assert command.replace("FOLDER", str(tmp_path)) in str(error.value)


def test_a_new_tagger_reads_words_unless_other_libraries_must_load_it() -> None:
    modern, exportable = loads(starter_recipe("tag")), loads(starter_recipe("tag", shape="exportable"))
    assert (modern.tokenizer.kind, modern.model.preset) == ("hash", "")
    assert (exportable.tokenizer.kind, exportable.model.preset) == ("byte-bpe", "bert-base")
    assert "words" in modern.model.overrides
    assert "words" not in exportable.model.overrides


def test_words_and_tags_in_two_files_are_split_at_spaces(tmp_path: Path) -> None:
    for name, text in {"seq.in": "Anna sleeps\nBen\n", "seq.out": "B-PER O\nB-PER\n"}.items():
        (tmp_path / name).write_text(text)
    files = {"tokens": str(tmp_path / "seq.in"), "tags": str(tmp_path / "seq.out")}
    recipe = loads(starter_recipe("tag", files))
    sources = open_sources(replace(recipe, data=replace(recipe.data, valid_fraction=0.0)))
    records = [record.fields for record in sources.train[""].records(Problems())]
    assert records == [{"tokens": ["Anna", "sleeps"], "tags": ["B-PER", "O"]}, {"tokens": ["Ben"], "tags": ["B-PER"]}]


def test_init_accepts_labels_and_tags_of_every_usable_type(tmp_path: Path) -> None:
    (tmp_path / "truth.jsonl").write_text('{"text": "a", "label": true}\n{"text": "b", "label": false}\n')
    (tmp_path / "tags.jsonl").write_text('{"tokens": ["Anna", "runs"], "tags": ["B-PER", "O"]}\n')
    (tmp_path / "sorted.csv").write_text("text,label\n" + "one,x\n" * 200 + "two,y\n" * 200)
    for task, name in (("classify", "truth.jsonl"), ("tag", "tags.jsonl"), ("classify", "sorted.csv")):
        assert starter_recipe(task, [str(tmp_path / name)])


def test_a_table_in_a_text_file_says_how_to_read_it_as_text(tmp_path: Path) -> None:
    book = tmp_path / "book.txt"
    book.write_text("one\ttwo\n" * 20)
    with pytest.raises(UsageError, match=r'Its lines have tabs: .* write data\.format = "text"'):
        open_sources(loads(f'[data]\ntrain = "{book}"\n[objective]\nkind = "causal_lm"\n[train]\nsteps = 1\n'))


def test_a_compressed_file_counts_as_the_text_in_it(tmp_path: Path) -> None:
    words = random.Random(0).randbytes(1_200_000).hex()
    pairs = [f"{words[start : start + 40]}\t{words[start + 40 : start + 80]}\n" for start in range(0, len(words), 80)]
    text = "".join(pairs).encode()
    (tmp_path / "a.tsv").write_bytes(text)
    (tmp_path / "a.tsv.gz").write_bytes(gzip.compress(text))
    assert (tmp_path / "a.tsv.gz").stat().st_size < DATA_SIZES[0].max_bytes < len(text)
    recipes = [
        loads(starter_recipe("translate", [str(tmp_path / name)], machine=LAPTOP)) for name in ("a.tsv", "a.tsv.gz")
    ]
    assert recipes[0].train.minutes == recipes[1].train.minutes == DATA_SIZES[1].minutes != DATA_SIZES[0].minutes


def test_a_summariser_is_judged_by_rouge(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("rouge_score", reason='computes ROUGE; pip install "qkv[rouge]"')
    assert starter_recipe("summarise").count('\nmetric = "rougeL"') == 1
    assert "metric" not in starter_recipe("translate")
    monkeypatch.setattr("qkv.tasks.starters.recipe.has_rouge", lambda: False)
    (line,) = (line for line in starter_recipe("summarise").splitlines() if "rougeL" in line)
    assert line.startswith("#")
    assert "qkv[rouge]" in line


def test_fine_tuning_says_what_its_minutes_buy(folder: Path, trained: str) -> None:
    """A passage counts for each question about it. Answers need more than an epoch; labels do not."""
    file, notes = str(folder / KINDS["question_answering"]), list[str]()
    starter_recipe("answer", [file], base_model=trained, minutes=1e-6, machine=LAPTOP, notes=notes)
    starter_recipe("answer", [file], base_model=trained, minutes=1e3, machine=LAPTOP, notes=notes)
    starter_recipe(
        "classify",
        [str(folder / KINDS["classification"])],
        base_model=trained,
        minutes=1e-6,
        machine=LAPTOP,
        notes=notes,
    )
    assert "the task needs about 2: --minutes 1" in notes[0]
    assert "epochs on this machine" in notes[1]
    assert not any("needs" in note for note in notes[1:])
