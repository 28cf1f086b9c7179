"""`scenes`: pictures, captions and questions that follow from a seed, a split and a number."""

import hashlib
import io
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from qkv.data.builtin import find_dataset
from qkv.data.builtin.scene import COLOURS, Draw, Thing, find_relation, parse_caption, write_caption
from qkv.data.builtin.scene_drawings import draw_drawing, parse_drawing, place_groups, write_drawing
from qkv.data.builtin.scene_questions import KINDS, NUMBERS, ask
from qkv.data.builtin.scenes import HELD_OUT, SceneDrawings, SceneObjects, ScenePairs, Scenes, scene_key
from qkv.errors import UsageError
from qkv.images.shapes import SHAPES, Shape, draw_shapes

SCENES = Scenes()


def test_examples_follow_from_their_number() -> None:
    found = [SCENES.example("train", 5, seed) for seed in (0, 0, 1)]
    assert dict(found[0]) == dict(found[1]) != dict(found[2])
    shown = repr([SCENES.example(split, 3)["caption"] for split in SCENES.splits])
    assert hashlib.sha256(shown.encode()).hexdigest()[:16] == "a682d341665fe77b"


def draw_scenes(split: str, count: int) -> list[Any]:
    return [SCENES.draw_scene(split, Draw(number)) for number in range(count)]


def test_no_scene_is_in_two_splits() -> None:
    keys = {split: {scene_key(scene) for scene in draw_scenes(split, 300)} for split in ("train", "valid", "test")}
    assert not keys["train"] & keys["valid"]
    assert not keys["train"] & keys["test"]
    assert not keys["valid"] & keys["test"]


def test_held_out_combinations_are_only_in_their_split() -> None:
    for split in ("train", "valid", "test", "more"):
        things = [thing for scene in draw_scenes(split, 200) for thing in scene]
        assert not {(thing.shape, thing.colour) for thing in things} & HELD_OUT
    for scene in draw_scenes("held-out", 100):
        assert any((thing.shape, thing.colour) in HELD_OUT for thing in scene)
    assert {len(scene) for scene in draw_scenes("more", 50)} == {5, 6}
    assert {len(scene) for scene in draw_scenes("train", 50)} == {1, 2, 3, 4}


def test_every_wording_says_the_same() -> None:
    for scene in draw_scenes("train", 40):
        captions = {write_caption(scene, Draw(number)) for number in range(60)}
        facts = [parse_caption(caption) for caption in captions]
        assert len(captions) > 5
        assert all(one == facts[0] for one in facts), captions
        assert sum(facts[0].values()) == 2 * len(scene) - 1
    one, other = Thing("small", "red", "circle", 0, 0), Thing("small", "red", "cross", 1, 1)
    assert find_relation(one, other) == ("above", "left")
    assert parse_caption(write_caption((one, other), Draw(1))) != parse_caption(write_caption((one,), Draw(1)))
    assert not parse_caption("hello")


def test_answers_are_right_and_balanced() -> None:
    asked = [(scene, *ask(scene, Draw(number))) for number, scene in enumerate(draw_scenes("train", 1500))]
    kinds = Counter(kind for *_, kind in asked)
    assert kinds.keys() == KINDS.keys()
    answers = Counter(answer for _, _, answer, kind in asked if kind in ("exist", "compare", "relation"))
    assert abs(answers["yes"] - answers["no"]) < 0.1 * answers.total()
    for scene, question, answer, _ in asked:
        if question == "how many objects are there?":
            assert answer == NUMBERS[len(scene)]
        for colour in COLOURS:
            if question == f"how many {colour} objects are there?":
                assert answer == NUMBERS[sum(thing.colour == colour for thing in scene)]
            if question == f"is there a {colour} object?":
                assert answer == ("yes" if any(thing.colour == colour for thing in scene) else "no")


def test_other_datasets() -> None:
    pair = ScenePairs().example("train", 0)
    assert pair["image"] != pair["second_image"]
    assert {ScenePairs().example("train", number)["answer"] for number in range(30)} == {"first", "second", "same"}
    labels = {SceneObjects().example("train", number)["label"] for number in range(300)}
    assert len(labels) == len(COLOURS) * len(SHAPES)
    first = SceneDrawings().example("test", 4)
    drawing = parse_drawing(first["caption"])
    assert drawing is not None
    assert first["caption"] in {write_drawing(drawing, Draw(number)) for number in range(30)}


def test_captions_of_drawings_can_be_parsed() -> None:
    for number in range(200):
        drawing = draw_drawing(Draw(number))
        assert parse_drawing(write_drawing(drawing, Draw(number + 1))) == drawing
        assert len(place_groups(drawing)) == sum(group.number for group in drawing.groups)
    assert parse_drawing("a house") is None


@pytest.mark.parametrize("name", SHAPES)
def test_edges_are_smooth_and_in_the_middle(name: str) -> None:
    pixels = draw_shapes([Shape(name, (0, 0, 0), 0.5, 0.5, 0.3)], 33, (255, 255, 255))
    assert pixels[16, 16].tolist() == [0, 0, 0]
    assert pixels[0, 0].tolist() == [255, 255, 255]
    assert ((pixels > 20) & (pixels < 235)).any(), "antialiased"
    assert (pixels == pixels[:, ::-1]).all(), "symmetric"


def test_the_png_is_what_was_drawn() -> None:
    image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
    example = SCENES.example("train", 1)
    pixels = np.asarray(image.open(io.BytesIO(example["image"])))
    assert pixels.shape == (64, 64, 3)
    background = Counter(map(tuple, pixels.reshape(-1, 3).tolist())).most_common(1)[0][0]
    assert min(background) > 220


def test_the_command_shows_examples_and_writes_a_sheet(run_qkv: Any, tmp_path: Path) -> None:
    assert "held-out" in run_qkv(["data", "scenes"]).out
    assert run_qkv(["data", "dates"]).out.startswith("dates: ")
    assert "has no pictures" in run_qkv(["data", "dates", "--picture", "x.png"], 2).err
    image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
    path = tmp_path / "sheet.png"
    run_qkv(["data", "scenes", "--picture", str(path)])
    assert min(image.open(path).size) > 500


def test_an_unknown_split_is_refused() -> None:
    with pytest.raises(UsageError, match="scenes has no split 'hold-out'; did you mean 'held-out'"):
        find_dataset("scenes").example("hold-out", 0)
