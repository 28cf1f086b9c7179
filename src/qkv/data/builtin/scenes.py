"""`scenes`: pictures of coloured shapes with captions and questions. Endless and seeded, drawn when they are read.

scenes            image, caption, question, answer         one to four objects: size, colour, shape, place
scene-pairs       image, second_image, question, answer    two such pictures
scene-objects     image, label                             one object, whose colour and shape are the label
scene-drawings    caption, image                           one or two groups of shapes; the caption says all

No scene is in two of the splits train, valid and test. Two more splits test generalisation: `held-out` has squares and
triangles in colours that these shapes never have in training (as CLEVR-CoGenT), and `more` has five or six objects.
"""

import hashlib
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any

from qkv.data.builtin.dataset import SPLITS, BuiltinDataset, assign_split, splitmix64
from qkv.data.builtin.scene import COLOURS, GRID, SHAPES, SIZES, Draw, Scene, Thing, write_caption
from qkv.data.builtin.scene_drawings import ShapeDrawing, draw_drawing, render_drawing, write_drawing
from qkv.data.builtin.scene_questions import ask, ask_about_two
from qkv.images.shapes import Shape, draw_shapes, write_png

VERSION = 1  # increase it if examples change
SIDE = 64  # pixels
RADIUS = {"small": 0.075, "large": 0.14}  # of the side
MAX_MOVE = 0.025  # maximum shift from the middle of a cell, as a fraction of the side
HALF = len(COLOURS) // 2
HELD_OUT = {("square", colour) for colour in tuple(COLOURS)[HALF:]} | {
    ("triangle", colour) for colour in tuple(COLOURS)[:HALF]
}
"""Shapes with colours that only the split `held-out` has."""


class Scenes(BuiltinDataset):
    """Pictures of one to four objects, with a caption, a question and its answer.

    >>> example = Scenes().example("train", 7)
    >>> example["image"][1:4], example["answer"] == Scenes().example("train", 7)["answer"]
    (b'PNG', True)
    """

    name = "scenes"
    description = "pictures of coloured shapes with captions, questions and answers"
    licence = "none needed: the pictures and texts are generated"
    fields: tuple[str, ...] = ("image", "caption", "question", "answer")
    splits: tuple[str, ...] = (*SPLITS, "held-out", "more")
    max_objects = 4

    def length(self, split: str) -> None:
        """Return None, because every split is endless."""

    @cached_property
    def fingerprint(self) -> str:
        """A hash of the version and of all constants of scenes."""
        parts = [self.name, VERSION, SIDE, RADIUS, COLOURS, SHAPES, SIZES, self.max_objects]
        return hashlib.sha256(repr(parts).encode()).hexdigest()[:32]

    def example(self, split: str, i: int, seed: int = 0) -> Any:
        """Example `i`: a mapping of the fields, each of which is made when it is read."""
        self.check_index(split, i)
        draw = Draw(splitmix64(splitmix64(splitmix64(seed) ^ self.splits.index(split) + 1) + i))
        return self.make(split, draw)

    def make(self, split: str, draw: Draw) -> Mapping[str, Any]:
        """The fields of an example."""
        scene = self.draw_scene(split, draw)
        question, answer, _ = ask(scene, draw)
        return LazyFields(
            image=lambda: render(scene, draw), caption=write_caption(scene, draw), question=question, answer=answer
        )

    def draw_scene(self, split: str, draw: Draw) -> Scene:
        """A scene that belongs to a split."""
        while True:
            count = 5 + draw.below(2) if split == "more" else 1 + draw.below(self.max_objects)
            cells: set[int] = set()
            while len(cells) < count:
                cells.add(draw.below(GRID**2))
            scene = tuple(draw_thing(split, cell, draw) for cell in sorted(cells))
            if split == "held-out":
                if any((thing.shape, thing.colour) in HELD_OUT for thing in scene):
                    return scene
            elif split == "more" or assign_split(scene_key(scene)) == split:
                return scene


def draw_thing(split: str, cell: int, draw: Draw) -> Thing:
    """A random object in a cell, with a colour that its shape may have in this split."""
    size, shape = draw.choose(tuple(SIZES)), draw.choose(SHAPES)
    colours = tuple(one for one in COLOURS if split == "held-out" or (shape, one) not in HELD_OUT)
    return Thing(size, draw.choose(colours), shape, *divmod(cell, GRID))


def scene_key(scene: Any) -> int:
    """A hash of a scene, the same on every machine."""
    return int.from_bytes(hashlib.blake2b(repr(scene).encode(), digest_size=8).digest(), "big")


def render(scene: Scene, draw: Draw) -> bytes:
    """A picture as the bytes of a PNG file. Places, sizes, colours and the background vary a little."""
    level = 225 + draw.below(31)
    shapes = []
    for thing in scene:
        colour = tuple(max(0, min(255, value + draw.below(21) - 10)) for value in COLOURS[thing.colour])
        x, y = ((0.5 + place) / GRID + draw.uniform(-MAX_MOVE, MAX_MOVE) for place in (thing.column, thing.row))
        radius = RADIUS[thing.size] * draw.uniform(0.92, 1.08)
        shapes.append(Shape(thing.shape, colour, x, y, radius))  # type: ignore[arg-type]
    return write_png(draw_shapes(shapes, SIDE, (level, level, level)))


class LazyFields(Mapping[str, Any]):
    """The fields of an example. A function in place of a value is called when the field is first read."""

    def __init__(self, **fields: Any) -> None:
        self.fields = fields

    def __getitem__(self, name: str) -> Any:
        value = self.fields[name]
        if callable(value):
            value = self.fields[name] = value()
        return value

    def __iter__(self) -> Iterator[str]:
        return iter(self.fields)

    def __len__(self) -> int:
        return len(self.fields)


class ScenePairs(Scenes):
    """Two pictures, and the question which of the two has more objects of a kind."""

    name = "scene-pairs"
    description = "pairs of pictures with questions that compare them"
    fields = ("image", "second_image", "question", "answer")

    def make(self, split: str, draw: Draw) -> Mapping[str, Any]:
        scenes = [self.draw_scene(split, draw) for _ in range(2)]
        question, answer = ask_about_two(scenes, draw)
        images = [render(scene, draw) for scene in scenes]
        return {"image": images[0], "second_image": images[1], "question": question, "answer": answer}


class SceneObjects(Scenes):
    """Pictures of one object, whose colour and shape are the label."""

    name = "scene-objects"
    description = "pictures of one coloured shape, with its name as the label"
    fields = ("image", "label")
    splits = SPLITS
    max_objects = 1

    def make(self, split: str, draw: Draw) -> Mapping[str, Any]:
        while True:
            thing = Thing(
                draw.choose(tuple(SIZES)), draw.choose(tuple(COLOURS)), draw.choose(SHAPES), *divmod(draw.below(9), 3)
            )
            if assign_split(scene_key((thing,))) == split:
                return {"image": render((thing,), draw), "label": f"{thing.colour} {thing.shape}"}


class SceneDrawings(Scenes):
    """Captions, and the picture that each of them fully describes: one or two groups of equal shapes."""

    name = "scene-drawings"
    description = "captions, and the picture that each of them fully describes"
    fields = ("caption", "image")
    splits = SPLITS

    def make(self, split: str, draw: Draw) -> Mapping[str, Any]:
        while True:
            drawing: ShapeDrawing = draw_drawing(draw)
            if assign_split(scene_key(drawing)) == split:
                return {"caption": write_drawing(drawing, draw), "image": render_drawing(drawing)}
