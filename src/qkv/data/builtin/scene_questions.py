"""Questions about scenes, and their answers: existence, count, comparison, attributes, relations, and two pictures.

The answers to yes-or-no questions are balanced.
"""

from collections.abc import Callable, Sequence

from qkv.data.builtin.scene import COLOURS, OPPOSITES, SHAPES, SIZES, Draw, Scene, Thing, find_relation, write_relation

Question = tuple[str, str]
NUMBERS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
ATTRIBUTES = ("size", "colour", "shape")


def matches(thing: Thing, wanted: dict[str, str]) -> bool:
    """Whether an object has these attributes."""
    return all(getattr(thing, name) == value for name, value in wanted.items())


def count(scene: Scene, wanted: dict[str, str]) -> int:
    """The number of objects with these attributes."""
    return sum(matches(thing, wanted) for thing in scene)


def describe(wanted: dict[str, str], plural: bool = False) -> str:
    """Attributes in words: "red circles", "large objects"."""
    words = [wanted[name] for name in ("size", "colour") if name in wanted]
    noun = wanted.get("shape", "object")
    return " ".join([*words, noun if not plural else "crosses" if noun == "cross" else f"{noun}s"])


def draw_wanted(draw: Draw, thing: Thing | None = None) -> dict[str, str]:
    """One or two attributes: of an object of the scene, or random ones."""
    names = draw.choose((("colour",), ("shape",), ("colour", "shape"), ("size", "shape"), ("size", "colour")))
    every = {"size": tuple(SIZES), "colour": tuple(COLOURS), "shape": SHAPES}
    return {name: draw.choose(every[name]) if thing is None else getattr(thing, name) for name in names}


def find_unique(scene: Scene, draw: Draw, without: str = "") -> tuple[Thing, dict[str, str]] | None:
    """An object and attributes that only it has; None if a few tries find none."""
    for _ in range(8):
        thing = draw.choose(scene)
        names = [name for name in ATTRIBUTES if name != without]
        dropped = draw.below(len(names) + 1)
        wanted = {name: getattr(thing, name) for i, name in enumerate(names) if i != dropped}
        if count(scene, wanted) == 1:
            return thing, wanted
    return None


def ask_existence(scene: Scene, draw: Draw) -> Question | None:
    """Is there a …?"""
    is_wanted = bool(draw.below(2))
    for _ in range(8):
        wanted = draw_wanted(draw, draw.choose(scene) if is_wanted else None)
        if bool(count(scene, wanted)) == is_wanted:
            article = "an" if describe(wanted)[0] in "aeiou" else "a"
            return f"is there {article} {describe(wanted)}?", "yes" if is_wanted else "no"
    return None


def ask_count(scene: Scene, draw: Draw) -> Question:
    """How many …?"""
    wanted = {} if not draw.below(6) else draw_wanted(draw, draw.choose(scene) if draw.below(4) else None)
    return f"how many {describe(wanted, plural=True)} are there?", NUMBERS[count(scene, wanted)]


def ask_comparison(scene: Scene, draw: Draw) -> Question | None:
    """Are there more … than …?"""
    answer = bool(draw.below(2))
    for _ in range(8):
        first, second = (draw_wanted(draw, draw.choose(scene) if draw.below(3) else None) for _ in range(2))
        if first != second and (count(scene, first) > count(scene, second)) == answer:
            texts = (describe(first, plural=True), describe(second, plural=True))
            return f"are there more {texts[0]} than {texts[1]}?", "yes" if answer else "no"
    return None


def ask_attribute(scene: Scene, draw: Draw) -> Question | None:
    """What colour, size or shape is …?"""
    name = draw.choose(ATTRIBUTES)
    found = find_unique(scene, draw, without=name)
    if found is None:
        return None
    thing, wanted = found
    return f"what {name} is the {describe(wanted)}?", str(getattr(thing, name))


def ask_relation(scene: Scene, draw: Draw) -> Question | None:
    """Is … left of …?"""
    one, other = find_unique(scene, draw), find_unique(scene, draw)
    if one is None or other is None or one[0] == other[0]:
        return None
    word = draw.choose(find_relation(one[0], other[0]))
    answer = bool(draw.below(2))
    text = write_relation((word if answer else OPPOSITES[word],), draw)
    return f"is the {describe(one[1])} {text} the {describe(other[1])}?", "yes" if answer else "no"


KINDS: dict[str, Callable[[Scene, Draw], Question | None]] = {
    "exist": ask_existence,
    "count": ask_count,
    "compare": ask_comparison,
    "attribute": ask_attribute,
    "relation": ask_relation,
}


def ask(scene: Scene, draw: Draw) -> tuple[str, str, str]:
    """A question about a scene, its answer, and its kind."""
    while True:
        kind = draw.choose(tuple(KINDS))
        if (found := KINDS[kind](scene, draw)) is not None:
            return (*found, kind)


def ask_about_two(scenes: Sequence[Scene], draw: Draw) -> Question:
    """Which of two pictures has more …?"""
    things = (*scenes[0], *scenes[1])
    while True:
        wanted = draw_wanted(draw, draw.choose(things))
        first, second = (count(scene, wanted) for scene in scenes)
        if first != second or not draw.below(4):  # equal numbers are rarer
            answer = "first" if first > second else "second" if second > first else "same"
            return f"which picture has more {describe(wanted, plural=True)}?", answer
