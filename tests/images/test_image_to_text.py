"""Models that describe images and answer questions about one or two of them: trained, run, evaluated and reported."""

import base64
import io
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from image_files import colour_file

import qkv
from qkv.errors import UsageError
from qkv.tasks.chat.image_chat import ImageChat, split_paths
from qkv.tasks.table import TASKS

COLOURS = {"red": (200, 40, 40), "green": (40, 200, 40), "blue": (40, 40, 200)}
TRAIN = """
[tokenizer]
kind = "word"
vocab_size = 40
min_frequency = 1
[model]
width = 32
layers = 1
heads = 2
ffn_width = 64
dropout = 0.0
[model.image]
size = 8
patch = 4
[train]
steps = {steps}
batch_tokens = 512
lr = 0.01
device = "cpu"
num_threads = 1
eval_every = 200
log_every = 50
"""


def write_pictures(folder: Path) -> None:
    for name, colour in COLOURS.items():
        for number in range(8):
            (folder / f"{name}{number}.png").write_bytes(colour_file(colour, seed=number))


def train(folder: Path, kind: str, rows: list[str], steps: int = 80, family: str = "seq2seq") -> qkv.Model:
    write_pictures(folder)
    (folder / "data.tsv").write_text("\n".join(rows) + "\n", encoding="utf-8")
    data = f'[data]\ntrain = "{folder}/data.tsv"\nvalid_fraction = 0.2\nmax_length = 24\ncache_dir = "{folder}/cache"\n'
    trained = TRAIN.format(steps=steps).replace("[model]", f'[model]\nfamily = "{family}"')
    objective = f'[objective]\nkind = "{kind}"\n'
    recipe = folder / "recipe.toml"
    recipe.write_text(f'run = "{folder}/run"\n{data}{trained}{objective}', encoding="utf-8")
    qkv.train(recipe)
    return qkv.load(folder / "run")


@pytest.fixture(scope="module")
def describer(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, qkv.Model]:
    folder = tmp_path_factory.mktemp("describer")
    rows = [f"{name}{n}.png\ta {name} picture" for n in range(8) for name in COLOURS]
    return folder, train(folder, "captioning", ["image\tcaption", *rows])


@pytest.fixture(scope="module")
def answerer(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, qkv.Model]:
    """Which of two pictures is of a colour: the order of the pictures decides."""
    folder = tmp_path_factory.mktemp("answerer")
    rows = ["image\tsecond_image\tquestion\tanswer"]
    for number in range(8):
        for first in COLOURS:
            for second in set(COLOURS) - {first}:
                files = f"{first}{number}.png\t{second}{7 - number}.png"
                rows += [f"{files}\twhich is {first} ?\tfirst", f"{files}\twhich is {second} ?\tsecond"]
    return folder, train(folder, "visual_questions", rows, steps=40)


def test_a_model_describes_images(describer: tuple[Path, qkv.Model], run_qkv: Any) -> None:
    folder, model = describer
    assert model.config.task == "describe"
    found = model.describe([folder / f"{name}3.png" for name in COLOURS])
    assert [one.text for one in found] == [f"a {name} picture" for name in COLOURS]
    assert model.describe((folder / "red1.png").read_bytes(), beam=2).text == "a red picture"
    assert model.run(str(folder / "blue1.png")).text == "a blue picture"
    assert run_qkv(["run", str(folder / "run"), str(folder / "green2.png")]).out == "a green picture\n"
    shown = json.loads(run_qkv(["eval", str(folder / "run"), "--json"]).out)
    assert shown["metrics"]["exact_match"] == 1.0
    assert "qkv report" not in run_qkv(["report", str(folder / "run"), "--seconds", "2"]).err
    with pytest.raises(UsageError, match=r"m\.translate reads text, but this model reads image"):
        model.translate("hello")


def test_a_model_answers_questions_about_two_images(answerer: tuple[Path, qkv.Model], run_qkv: Any) -> None:
    folder, model = answerer
    red, blue = folder / "red5.png", folder / "blue6.png"
    one, other = TASKS["ask"].make_prompts(model.find_model(TASKS["ask"]), [((red, blue), "a"), ((blue, red), "a")])
    assert len(one) == 2 * 4 + 2, "two images of four patches, the question and [EOS]"
    with torch.no_grad():
        memories = [model.network.encode(prompt.inputs).vectors for prompt in (one, other)]
    assert (memories[0] - memories[1]).abs().max() > 0.01, "the order of the images matters"
    found = model.ask([(red, blue), (blue, red)], "which is blue ?")
    assert {answer.text for answer in found} <= {"first", "second"}
    line = f"{blue}\t{red}\twhich is blue ?"
    assert run_qkv(["run", str(folder / "run"), line]).out.strip() in {"first", "second"}
    evaluation = model.evaluate(str(folder / "data.tsv"), limit=20)
    assert evaluation.metrics["exact_match"] > 0.3


@pytest.fixture(scope="module")
def one_decoder(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, qkv.Model]:
    """Patches and tokens in one sequence."""
    folder = tmp_path_factory.mktemp("decoder")
    rows = ["image\tquestion\tanswer"]
    rows += [f"{name}{number}.png\twhich ?\t{name}" for number in range(8) for name in COLOURS]
    return folder, train(folder, "visual_questions", rows, steps=60, family="decoder")


def test_one_decoder_reads_patches_and_tokens_in_one_sequence(one_decoder: tuple[Path, qkv.Model]) -> None:
    folder, model = one_decoder
    assert (model.config.family, model.config.task) == ("decoder", "ask")
    red, blue = folder / "red5.png", folder / "blue6.png"
    assert [one.text for one in model.ask([red, blue], "which ?")] == ["red", "blue"]
    assert model.evaluate(str(folder / "data.tsv")).metrics["exact_match"] == 1.0
    prompts = TASKS["ask"].make_prompts(
        model.find_model(TASKS["ask"]), [((red, blue), "which ?"), ((blue, red), "which ?")]
    )
    assert prompts[0].positions == [0, *[1] * 4, *[2] * 4, 3, 4, 5], "BOS, two images, the question and EOS"
    with torch.no_grad():
        one, other = (model.network(prompt.inputs)[0, -1] for prompt in prompts)
    assert (one - other).abs().max() > 0.01, "the order of the images matters"


def test_words_look_at_the_picture(describer: tuple[Path, qkv.Model], one_decoder: tuple[Path, qkv.Model]) -> None:
    folder, model = describer
    shown = model.look(str(folder / "red3.png")).document["picture"]
    assert shown["queries"] == ["a", "red", "picture", "(end)"]
    folder, model = one_decoder
    image, question = str(folder / "red3.png"), "which ?"
    prompt = TASKS["ask"].make_prompts(model.find_model(TASKS["ask"]), [(image, question)])[0]
    shown = model.look(prompt.inputs).document["picture"]
    assert shown["queries"][:2] == ["which", "?"]
    assert len(shown["effects"]["looked"]) == len(shown["queries"]) == len(shown["pictures"][0]["share"][0])


def test_a_chat_about_images(
    one_decoder: tuple[Path, qkv.Model], run_qkv: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, model = one_decoder
    monkeypatch.chdir(folder)
    lines = "red3.png which ?\nwhich ?\n'blue6.png' which ?\n"
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(lines.encode())))
    assert run_qkv(["chat", str(folder / "run")]).out == "red\nred\nblue\n"
    assert split_paths("see none.png now") == "see none.png now"
    chat = ImageChat(model.find_model(TASKS["ask"]), TASKS["ask"])
    with pytest.raises(UsageError, match="no image in the chat yet"):
        chat.reply([{"role": "user", "content": "which ?"}])


def test_a_server_chats_about_images(one_decoder: tuple[Path, qkv.Model]) -> None:
    serving = pytest.importorskip("serving", reason="starlette is not installed")
    folder, model = one_decoder
    url = "data:image/png;base64," + base64.b64encode((folder / "blue2.png").read_bytes()).decode()
    image = {"type": "image_url", "image_url": {"url": url}}
    words = {"type": "text", "text": "which ?"}
    chat = [{"role": "user", "content": [image, words]}, {"role": "assistant", "content": "?"}]
    with serving.client({"asked": model}, gather_seconds=0.0) as server:

        def ask(messages: list[Any], **fields: Any) -> Any:
            return server.post("/v1/chat/completions", json={"messages": messages, **fields})

        assert ask(chat[:1]).json()["choices"][0]["message"]["content"] == "blue"
        assert ask([*chat, {"role": "user", "content": "which ?"}]).json()["choices"][0]["message"]["content"] == "blue"
        assert '"content": "blue"' in ask(chat[:1], stream=True).text.replace('":"', '": "')
        away = {"type": "image_url", "image_url": {"url": "http://127.0.0.1/x.png"}}
        assert "send it as a data URL" in ask([{"role": "user", "content": [away, words]}]).text


def test_a_server_answers_questions_about_two_images(answerer: tuple[Path, qkv.Model]) -> None:
    serving = pytest.importorskip("serving", reason="starlette is not installed")
    folder, model = answerer
    red, blue = (
        "data:image/png;base64," + base64.b64encode((folder / f"{name}3.png").read_bytes()).decode()
        for name in ("red", "blue")
    )
    with serving.client({"answerer": model}, gather_seconds=0.0) as server:
        asked = {"image": red, "second_image": [blue, red], "question": "which is blue ?"}
        found = server.post("/ask", json=asked).json()["results"]
        expected = model.ask(
            [(folder / "red3.png", folder / f"{name}3.png") for name in ("blue", "red")], "which is blue ?"
        )
        assert [one["text"] for one in found] == [one.text for one in expected]
        refused = server.post("/ask", json={**asked, "second_image": "red.png"})
        assert "send it as a data URL" in refused.text


def test_a_server_reads_images_as_data_urls_only(describer: tuple[Path, qkv.Model]) -> None:
    serving = pytest.importorskip("serving", reason="starlette is not installed")
    folder, model = describer
    path = folder / "red2.png"
    url = "data:image/png;base64," + base64.b64encode(path.read_bytes()).decode()
    with serving.client({"describer": model}, gather_seconds=0.0) as server:
        found = server.post("/describe", json={"texts": [url, url]})
        assert [one["text"] for one in found.json()["results"]] == ["a red picture"] * 2
        for wrong in (str(path), "http://127.0.0.1/red.png", "data:image/png;base64,!"):
            refused = server.post("/describe", json={"texts": wrong})
            assert refused.status_code == 400
            assert "image or sound 1" in refused.text


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (("red5.png", ""), "question 1 is empty"),
        (("red5.png",), r"input 1 is not an image and its question; give \(image, question\)"),
        ((3, "which?"), "image must be a text|image 1 must be an image"),
    ],
)
def test_wrong_questions_are_refused(value: Any, message: str, answerer: tuple[Path, qkv.Model]) -> None:
    with pytest.raises(UsageError, match=message):
        answerer[1].ask([value])


def test_a_text_model_has_no_images() -> None:
    model = qkv.new("bert-tiny")
    with pytest.raises(UsageError, match=r"m\.describe needs a model that describes images"):
        model.describe("x.png")
