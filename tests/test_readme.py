"""The documentation matches the code.

Every command and every Python example in the README and in the pages on training, decoding and looking inside runs, in
reading order. Tables list every option, paths exist, and links lead somewhere.
"""

import contextlib
import io
import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from dataclasses import fields, replace
from pathlib import Path
from unittest import mock

import draw_ratios
import numpy as np
import pytest
from chat_models import TOOL_TEMPLATE, chat_model

import qkv
from qkv import cli
from qkv.data.builtin import find_dataset
from qkv.decode import GenerationOptions
from qkv.models.tables.presets import find_preset
from qkv.search.evaluate import DEFAULT_METRICS
from qkv.tasks.starters.sizes import DATA_SIZES, MIN_STEPS, MIN_TOKENS_PER_PARAMETER, SHAPES
from qkv.tasks.table import TASKS as TASK_TABLE
from qkv.train.recipe.schema import Recipe
from qkv.train.recipe.toml import format_value

ROOT = Path(__file__).parent.parent
PAGES = ("README.md", "docs/training.md", "docs/decoding.md", "docs/inside.md")
# In this order: the page about embedding uses a model of the page about masked words.
TASKS = (
    *("translate", "summarise", "classify", "tag", "answer", "fill", "complete", "chat", "embed", "search", "report"),
    "proteins",
)
PAYLOAD_TASKS = ("describe", "ask", "draw", "transcribe", "speak")  # their examples need other packages
SHORT_TRAINING = "train.steps=1 train.minutes=0 train.eval_examples=4 model.layers=1"
SHORT_DATES = "train.steps=8 data.epoch_examples=600 train.eval_examples=4 data.cache_dir=cache"


@pytest.fixture(scope="module")
def reader_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The working directory of a reader."""
    return tmp_path_factory.mktemp("reader")


def write_task_files(folder: Path) -> None:
    """Write the files of docs/tasks and docs/evaluation.md."""
    passages = [f"Anna lives in house number {i}. Ben lives in house number {i + 1}." for i in range(80)]
    asked = [
        {
            "context": passage,
            "qas": [
                {"id": str(i), "question": "Where does Anna live?", "answers": [{"text": answer, "answer_start": 14}]}
            ],
        }
        for i, passage in enumerate(passages)
        for answer in [passage[14:].split(".")[0]]
    ]
    mails = [{"document": f"The meeting about number {i} is on Monday.", "summary": f"Number {i}"} for i in range(80)]
    chats = [
        [{"role": "user", "content": f"Where is number {i}?"}, {"role": "assistant", "content": f"In house {i}."}]
        for i in range(80)
    ]
    tagged = [f"Anna B-PER\nlives O\nin O\nParis B-LOC\n{i} O\n" for i in range(80)]
    pairs = [f"A sentence with number {i}.\tEine Zeile mit Nummer {i}.\n" for i in range(60)]
    files = {
        "pairs.tsv": "".join(pairs),  # without a header, as docs/tasks/translate.md describes it
        "reviews.csv": "text,label\n"
        + "".join(f"a {kind} book {i},{kind}\n" for i in range(60) for kind in ("fine", "bad")),
        "lines.txt": "a fine book\na bad book\n",
        "names.conll": "\n".join(tagged),
        "questions.json": json.dumps({"version": "1.1", "data": [{"title": "houses", "paragraphs": asked}]}),
        "mails.jsonl": "".join(json.dumps(mail) + "\n" for mail in mails),
        "mails.txt": "The meeting is on Monday.\n" + "Bring the plan. " * 300 + "\n",
        "chats.jsonl": "".join(json.dumps({"messages": chat}) + "\n" for chat in chats),
        "notes.txt": "\n".join(passages),
        "peptides.csv": "sequence,label\n"
        + "".join(f"{'GLLDTFKNLALNAAKSAGVSV'[i % 9 :]}{'KR' if i % 2 else 'DE'},{i % 2}\n" for i in range(60)),
        "judged.tsv": "query\tdocument\trelevance\nWhere does Anna live?\tnotes.txt\t1\n",
    }
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")


def run(command: list[str], folder: Path) -> None:
    """Run a command as typed. qkv runs in this process, which has already loaded torch."""
    if command[0] == "qkv":
        command, file = (command[:-2], command[-1]) if "<" in command else (command, "")
        data = (folder / file).read_bytes() if file else b"Where does Anna live?\n"  # for `qkv chat`
        typed = io.TextIOWrapper(io.BytesIO(data))
        with contextlib.chdir(folder), mock.patch("sys.stdin", typed):
            assert cli.run_command(command[1:]) == 0, shlex.join(command)
        return
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    process = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120)
    assert process.returncode == 0, f"{shlex.join(command)}\n{process.stdout}\n{process.stderr}"


def test_examples_run_in_reading_order(reader_folder: Path) -> None:
    for page in PAGES:
        blocks = re.findall(r"```(sh|python)\n(.*?)```", (ROOT / page).read_text(encoding="utf-8"), re.DOTALL)
        assert blocks
        run_examples(page, [(language, shorten_training(text)) for language, text in blocks], reader_folder)


def test_examples_of_tasks_run(tmp_path: Path) -> None:
    """The page on evaluation uses the models of the pages on tasks."""
    pages = {path.stem for path in (ROOT / "docs/tasks").iterdir()}
    assert {*TASKS, *PAYLOAD_TASKS, "README"} == pages
    write_task_files(tmp_path)
    chat_model(1024, TOOL_TEMPLATE).save(tmp_path / "models/smollm2")
    small = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    esm = qkv.new(find_preset("esm2-8m", **small), tokenizer=qkv.Tokenizer.for_proteins())
    esm.export(tmp_path / "downloaded/esm2")
    for page in (*(f"docs/tasks/{name}.md" for name in TASKS), "docs/evaluation.md"):
        blocks = re.findall(r"```(sh|python)\n(.*?)```", (ROOT / page).read_text(encoding="utf-8"), re.DOTALL)
        shortened = [(kind, re.sub(r"train\.minutes=[0-9]+", SHORT_TRAINING, text)) for kind, text in blocks]
        run_examples(page, shortened, tmp_path)


def test_examples_of_tasks_with_images_run(tmp_path: Path) -> None:
    pytest.importorskip("PIL", reason="Pillow is not installed")
    examples = [find_dataset("scenes").example("train", number) for number in range(60)]
    (tmp_path / "pictures" / "few").mkdir(parents=True)
    (tmp_path / "pictures" / "many").mkdir()
    captions, questions = ["image\tcaption"], ["image\tquestion\tanswer"]
    for number, example in enumerate(examples):
        name = f"pictures/{'few' if number % 2 else 'many'}/{number}.png"
        (tmp_path / name).write_bytes(example["image"])
        captions.append(f"{name}\t{example['caption']}")
        questions.append(f"{name}\t{example['question']}\t{example['answer']}")
    (tmp_path / "captions.tsv").write_text("\n".join(captions) + "\n", encoding="utf-8")
    (tmp_path / "questions.tsv").write_text("\n".join(questions) + "\n", encoding="utf-8")
    (tmp_path / "picture.png").write_bytes(examples[0]["image"])
    for page in (f"docs/tasks/{name}.md" for name in PAYLOAD_TASKS[:3]):
        blocks = re.findall(r"```(sh|python)\n(.*?)```", (ROOT / page).read_text(encoding="utf-8"), re.DOTALL)
        short = "train.steps=1 train.minutes=0 train.eval_examples=4 model.width=32"
        run_examples(page, [(kind, re.sub(r"train\.minutes=[0-9]+", short, text)) for kind, text in blocks], tmp_path)


def test_examples_of_tasks_with_sounds_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qkv.tasks.prepare.aligner.MIN_STEPS", 5)
    soundfile = pytest.importorskip("soundfile", reason="soundfile is not installed")
    rng, lines = np.random.default_rng(0), ["audio\ttext"]
    for number in range(40):
        soundfile.write(tmp_path / f"{number}.wav", rng.normal(0, 0.1, 8_000), 16_000)
        lines.append(f"{number}.wav\ta word")
    (tmp_path / "clips.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (tmp_path / "0.wav").rename(tmp_path / "clip.wav")
    (tmp_path / "clips.tsv").write_text("\n".join(lines).replace("\n0.wav", "\nclip.wav") + "\n", encoding="utf-8")
    for page in ("transcribe", "speak"):
        text = (ROOT / f"docs/tasks/{page}.md").read_text(encoding="utf-8")
        short = "train.steps=1 train.minutes=0 train.eval_examples=4 model.width=32"
        blocks = re.findall(r"```(sh|python)\n(.*?)```", text, re.DOTALL)
        run_examples(page, [(kind, re.sub(r"train\.minutes=[0-9]+", short, one)) for kind, one in blocks], tmp_path)


def write_bert(folder: Path) -> None:
    """Write a small BERT as a folder of `transformers`, with a tokenizer."""
    words = ["Paris is the capital of France. a fine book, a bad book"] * 3
    roles = ["pad", "unk", "cls", "sep", "mask"]
    tokenizer = qkv.Tokenizer.train("wordpiece", iter(words), vocab_size=120, special_tokens=roles, template="bert")
    shape = qkv.new("bert-tiny").config
    assert shape.encoder is not None
    encoder = replace(shape.encoder, vocab_size=tokenizer.vocab_size)
    config = replace(shape, encoder=encoder, head=replace(shape.head, outputs=tokenizer.vocab_size))
    qkv.new(config, tokenizer=tokenizer).export(folder)


@pytest.mark.parametrize("page", ["docs/huggingface.md", "docs/choosing.md"])
def test_examples_of_pages_for_users_run(page: str, tmp_path: Path) -> None:
    blocks = re.findall(r"```(sh|python)\n(.*?)```", (ROOT / page).read_text(encoding="utf-8"), re.DOTALL)
    write_task_files(tmp_path)
    write_bert(tmp_path / "downloaded")
    shortened = [(kind, re.sub(r"train\.minutes=[0-9]+", SHORT_TRAINING, text)) for kind, text in blocks]
    run_examples(page, shortened, tmp_path)


def test_the_sizes_of_a_new_model_are_documented() -> None:
    text = (ROOT / "docs/choosing.md").read_text(encoding="utf-8")
    for data in DATA_SIZES:
        limit = f"up to {data.max_bytes / 1e6:.0f} MB" if data.max_bytes < float("inf") else "more"
        assert f"| {limit} | {data.vocab_size:,} | {data.dropout} | {data.minutes} |" in text
    for shape in SHAPES:
        numbers = f"{shape.width} | {shape.layers} | {shape.vocab_size:,} | {shape.batch_tokens:,}"
        least = f" {shape.min_bytes / 1e6:g} MB" if shape.min_bytes else ""
        assert f"| {numbers} |{least} |" in text
    for number in (*MIN_TOKENS_PER_PARAMETER.values(), MIN_STEPS):
        assert {2.0: "two", 1000: "1,000"}.get(number, str(number)) in text


def shorten_training(text: str) -> str:
    """Replace a training budget of minutes by one of seconds, and evaluate few examples. The rest stays as it is."""
    text = re.sub(r"^qkv train dates$", f"qkv train dates {SHORT_DATES}", text, flags=re.MULTILINE)
    text = re.sub(r"^(qkv train .*train\.steps=\d+)", r"\1 train.eval_examples=8", text, flags=re.MULTILINE)
    text = re.sub(r"^(qkv verify-resume \S+)", r"\1 train.batch_tokens=1024 --steps 4", text, flags=re.MULTILINE)
    return re.sub(r'(train\.minutes(=|": ))[1-9][0-9]*', r"\g<1>0.05", text)


def run_examples(page: str, blocks: list[tuple[str, str]], folder: Path) -> None:
    names: dict[str, object] = {}
    for language, text in blocks:
        if page == "README.md":  # its examples do not depend on each other
            names = {}
        if language == "python":
            with contextlib.chdir(folder):
                exec(compile(text, page, "exec"), names)
            continue
        for line in text.strip().splitlines():
            words = shlex.split(line, comments=True)
            if words[0] == "python":  # python SCRIPT > FILE
                _, script, _, output = words
                process = subprocess.run([sys.executable, ROOT / script], capture_output=True, text=True, check=True)
                (folder / output).write_text(process.stdout, encoding="utf-8")
            elif words[0] == "make":  # `make test` would run this test again, so only print what make would do
                run(["make", "--dry-run", *words[1:]], ROOT)
            else:
                assert words[0] == "qkv", f"unknown command in {page}: {line}"
                run(words, folder)


def test_decoding_page_lists_every_option() -> None:
    text = (ROOT / "docs/decoding.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| (`.*?) \|", text, re.MULTILINE)
    named = [name for cell in listed for name in re.findall(r"`(\w+)`", cell)]
    assert sorted(named) == sorted(field.name for field in fields(GenerationOptions))


def test_evaluation_page_lists_every_metric() -> None:
    text = (ROOT / "docs/evaluation.md").read_text(encoding="utf-8").split("## Which metric when")[1].split("##")[0]
    listed = {name for row in re.findall(r"^\|[^|]*\| ([^|]*) \|", text, re.MULTILINE) for name in row.split("`")[1::2]}
    known = {name for task in TASK_TABLE.values() for name in task.list_metrics()}
    assert listed == known | set(DEFAULT_METRICS)


def test_training_page_lists_every_key_and_its_default() -> None:
    text = (ROOT / "docs/training.md").read_text(encoding="utf-8")
    for section in fields(Recipe)[2:]:
        table = text.split(f"### [{section.name}]")[1].split("###")[0]
        listed = dict(re.findall(r"^\| `(\w+)` \| `(.*?)` \|", table, re.MULTILINE))
        defaults = getattr(Recipe(), section.name)
        known = {
            one.name.rstrip("_"): getattr(defaults, one.name) for one in fields(defaults) if one.name != "overrides"
        }
        assert listed == {name: format_value(value) if value != {} else "{}" for name, value in known.items()}


def test_paths_in_the_documentation_exist() -> None:
    """Paths in backticks are relative to the root of the repository or to src/qkv."""
    for page in documentation():
        for path in re.findall(r"`((?:[\w.-]+/)+(?:[\w-]+\.(?:py|md|toml))?)`", page.read_text(encoding="utf-8")):
            found = (ROOT / path).exists() or (ROOT / "src/qkv" / path).exists() or path == "runs/"
            assert found, f"{page.name}: {path}"


@pytest.mark.parametrize("package", ["qkv", "qkv_bench", "qkv_lab", "qkv_translation"])
def test_architecture_page_lists_every_folder(package: str) -> None:
    text = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    (tree,) = re.findall(rf"^src/{package}/.*\n((?: .*\n)*)", text, re.MULTILINE)
    listed, path = set(), list[str]()
    for indent, name in re.findall(r"^( +)(\w+)/ ", tree, re.MULTILINE):
        path = [*path[: len(indent) // 2 - 1], name]
        listed.add("/".join(path))
    root = ROOT / "src" / package
    files = {path.parent.relative_to(root).as_posix() for path in (*root.glob("*/**/*.py"), *root.glob("*/*.toml"))}
    files |= {path.parents[1].relative_to(root).as_posix() for path in root.glob("bundled/*/config.json")}
    assert listed == files


def test_quickstart_runs(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The commands of `make quickstart` run, with fewer dates and steps."""
    make = ["make", "--dry-run", "--always-make", "quickstart"]
    printed = subprocess.run(make, cwd=ROOT, capture_output=True, text=True).stdout
    lines = [shlex.split(line) for line in printed.splitlines() if "/bin/qkv" in line]
    translate, train, use, echo = ([Path(words[0]).name, *words[1:]] for words in lines)
    run(translate, tmp_path)
    assert capfd.readouterr().out.splitlines()[0] == "Le chat a poursuivi la souris."
    assert train == ["qkv", "train", "dates"]
    run(
        [
            *train,
            "train.steps=8",
            "data.epoch_examples=600",
            "train.eval_examples=4",
            f"data.cache_dir={tmp_path / 'cache'}",
        ],
        tmp_path,
    )
    capfd.readouterr()
    run(use, tmp_path)
    assert len(capfd.readouterr().out.splitlines()) == len(use) - 3  # one line for each text
    assert echo[0] == "echo"


def test_installed_command_runs() -> None:
    run([str(Path(sys.executable).with_name("qkv")), "--version"], ROOT)


def documentation() -> list[Path]:
    """The pages that people read."""
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


def find_anchors(page: Path) -> set[str]:
    """The anchors of a page: its headings in lower case, without punctuation, with hyphens; and those of HTML."""
    text = page.read_text(encoding="utf-8")
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    slugs = {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}
    return slugs | set(re.findall(r'<a (?:id|name)="([^"]+)"', text))


def test_the_chart_of_speeds_has_the_measured_ratios() -> None:
    assert draw_ratios.PICTURE.read_text(encoding="utf-8") == draw_ratios.render(), "run python docs/draw_ratios.py"


def test_the_front_page_is_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 150


def test_the_site_lists_every_page() -> None:
    listed = re.findall(r"docs/[\w/-]+\.md", (ROOT / "docs/mkdocs.yml").read_text(encoding="utf-8"))
    pages = [page.relative_to(ROOT).as_posix() for page in (ROOT / "docs").rglob("*.md")]
    assert sorted(listed) == sorted(pages), "docs/mkdocs.yml has the order of the pages"


def test_links_exist() -> None:
    for page in documentation():
        for target, anchor in re.findall(r"\]\(([^)#]*)#?([^)]*)\)", page.read_text(encoding="utf-8")):
            if target.startswith("http"):
                continue
            found = page.parent / target if target else page
            assert found.exists(), f"{page}: {target}"
            if anchor and found.suffix == ".md":
                assert anchor in find_anchors(found), f"{page}: {target}#{anchor}"


def test_readme_lists_every_extra() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    table = (ROOT / "README.md").read_text(encoding="utf-8").split("| extra | adds |")[1].split("\n\n")[0]
    cells = re.findall(r"^\| (`.*?) \|", table, re.MULTILINE)
    listed = {name for cell in cells for name in re.findall(r"`(\w+)`", cell)}
    assert listed == set(project["optional-dependencies"]) - {"test", "dev", "docs"}
