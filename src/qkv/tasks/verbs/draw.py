"""Draw: a picture of what a text describes.

The model writes one code for each patch of the picture, and its back end draws them.
"""

from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Annotated, Any

import numpy as np
import torch

from qkv.data.records import Record
from qkv.decode import GenerationOptions, draw
from qkv.errors import UsageError
from qkv.models import Config
from qkv.tasks.evaluation import EvaluationOptions, find_bad_file, select_decodable, select_usable
from qkv.tasks.metrics import mean_score
from qkv.tasks.record_task import RecordTask
from qkv.tasks.results import Result
from qkv.tasks.run.example_batches import batches
from qkv.tasks.run.generate import generate_batched, make_generation_options, prompt_ids
from qkv.tasks.scorer import Metric, Prediction, TaskScorer
from qkv.tasks.starters.starter import Starter
from qkv.tasks.task import TaskOptions
from qkv.tasks.text_model import TextModel
from qkv.values import HIDDEN, Limits

KIND = "image-codes"


@dataclass(frozen=True, kw_only=True)
class DrawOptions(TaskOptions):
    """Options of `m.draw`."""

    temperature: Annotated[float, Limits(0, 1e6), "The temperature of sampling; 0 draws the likeliest picture."] = 0.0
    top_k: Annotated[int, Limits(0, 1_000_000), "Sample from the k most probable codes; 0: from all."] = 0
    top_p: Annotated[float, Limits(1e-6, 1), "Sample from the most probable codes, up to this probability."] = 1.0
    seed: Annotated[int | None, Limits(0, 2**63), "The seed of sampling."] = None
    guidance: Annotated[
        float,
        Limits(0, 100),
        "Above 1, pictures follow the text more closely (classifier-free guidance); needs caption_dropout in training.",
    ] = 1.0


@dataclass(frozen=True, repr=False)
class DrawnImage(Result):
    """A picture that the model has drawn. `image` is a Pillow image, `png` has the bytes of a file."""

    source: str = field(metadata=HIDDEN)
    codes: Annotated[list[int], "The codes of the patches, row by row."]
    b64_json: Annotated[str, "The PNG file in base64."]
    pixels: Any = field(metadata=HIDDEN, compare=False)

    @cached_property
    def png(self) -> bytes:
        """The picture as the bytes of a PNG file."""
        from qkv.images.shapes import write_png

        return write_png(self.pixels)

    @property
    def image(self) -> Any:
        """The picture as a Pillow image."""
        from qkv.images.files import import_pillow

        return import_pillow().fromarray(self.pixels)

    def summary(self) -> str:
        height, width, _ = self.pixels.shape
        return f"a picture of {width} × {height} pixels"

    def _repr_png_(self) -> bytes:
        return self.png

    @staticmethod
    def from_codes(model: TextModel, source: str, ids: Sequence[int]) -> "DrawnImage":
        """Draw generated ids."""
        from qkv.images.shapes import write_png

        found = [one for one in draw(model.network, ids) if one.kind == KIND]
        first = model.config.back_ends[0].first_id
        values = found[0].values if found else model.network.back_ends[KIND](torch.zeros(0, dtype=torch.long))
        pixels = (values.cpu().numpy() * 255).round().astype(np.uint8)
        codes = [token - first for token in ids[found[0].start : found[0].end]] if found else []
        return DrawnImage(source, codes, b64encode(write_png(pixels)).decode(), pixels)


def exact_codes(predicted: Sequence[Any], expected: Sequence[Any]) -> float:
    """The fraction of pictures whose codes are all equal."""
    return mean_score([float(ours == theirs) for ours, theirs in zip(predicted, expected, strict=True)])


def code_accuracy(predicted: Sequence[Any], expected: Sequence[Any]) -> float:
    """The mean fraction of equal codes."""
    pairs = zip(predicted, expected, strict=True)
    return mean_score([sum(map(int.__eq__, a, b)) / max(1, len(b)) for a, b in pairs])


class DrawingScorer(TaskScorer):
    """A picture for each caption, whose codes are compared with the codes of the record's picture."""

    modality, metric, input_fields = "image", "exact_codes", ("caption",)
    metrics: Mapping[str, Metric] = {"exact_codes": exact_codes, "code_accuracy": code_accuracy}
    selectable = tuple(metrics)

    def __init__(self, config: Config) -> None:
        self.config = config
        self.codec: Any = None

    def is_usable(self, record: Record) -> bool:
        has_both = isinstance(record.fields.get("caption"), str) and isinstance(record.fields.get("image"), bytes)
        return has_both and not find_bad_file(record)

    def expected(self, record: Record) -> Any:
        from qkv.data.objectives.drawing import encode_picture

        return () if self.codec is None else tuple(encode_picture(self.codec, record.fields["image"]))

    def predict(self, model: TextModel, records: Sequence[Record], options: Any, notes: list[str]) -> list[Prediction]:
        self.codec = model.network.back_ends[KIND]
        found = DRAW.decode(model, [one.fields["caption"] for one in records], DrawOptions())
        return [(tuple(one.codes), None) for one in found]

    def score_each(self, predicted: Sequence[Any], expected: Sequence[Any]) -> list[float]:
        return [code_accuracy([ours], [theirs]) for ours, theirs in zip(predicted, expected, strict=True)]

    def show(self, value: Any, record: Record | None = None) -> str:
        return f"codes {' '.join(map(str, value[:8]))} …"


def draw_guided(
    model: TextModel, prompts: Sequence[Sequence[int]], options: GenerationOptions, guidance: float
) -> list[list[int]]:
    """The ids of a picture of each prompt. A caption that says nothing has EOS only, as in training."""
    from qkv.decode.guidance import generate_guided

    eos = model.tokenizer.special_tokens.eos
    assert eos is not None  # the objective needs it
    found: list[list[int]] = [[] for _ in prompts]
    for chosen in batches([len(one) for one in prompts], model.batch_size, model.progress):
        given = [prompts[i] for i in chosen]
        ids = generate_guided(model.network, given, [[eos] * len(one) for one in given], options, guidance)
        for i, drawn in zip(chosen, ids, strict=True):
            found[i] = drawn
    return found


class DrawTask(RecordTask):
    """Draw a picture of what a text describes."""

    name = "draw"
    description = "draws pictures"
    question = "Draw pictures."
    title = "Picture"
    objective = "drawing"
    inputs, target = ("caption",), "image"
    example_inputs = ("a red circle",)
    batch_size, generates = 16, True
    Options, EvalOptions, results, scorers = DrawOptions, EvaluationOptions, (DrawnImage,), (DrawingScorer,)
    example_data = "a table with the columns caption and image (paths of files)"
    starter = Starter("A picture of what a text describes.", "captions.tsv", 66, draws=True)

    def supports(self, config: Config) -> bool:
        """Whether a model was trained to draw."""
        return config.task == self.name and any(one.kind == KIND for one in config.back_ends)

    def decode(self, model: TextModel, texts: Sequence[str], options: DrawOptions) -> list[DrawnImage]:
        """A picture of each text. At temperature 0, it is the likeliest one, code by code."""
        codec: Any = next(one for one in model.config.back_ends if one.kind == KIND)
        for number, text in enumerate(texts, start=1):
            if not text.strip():
                raise UsageError(f"text {number} is empty; describe a picture")
        if options.guidance != 1 and not codec.caption_dropout:
            raise UsageError(
                f"guidance = {options.guidance:g}, but this model has only learned pictures with captions; leave it "
                "out, or train with objective.caption_dropout = 0.1"
            )
        allowed = torch.full((model.config.stack.vocab_size,), float("-inf"))
        allowed[codec.first_id : codec.first_id + codec.num_codes] = 0.0
        sampling = {"temperature": options.temperature}
        if options.temperature:
            sampling |= {"top_k": options.top_k, "top_p": options.top_p, "seed": options.seed}  # type: ignore[dict-item]
        chosen: GenerationOptions = make_generation_options(
            {"max_tokens": codec.num_patches, "min_tokens": codec.num_patches, **sampling}
        )
        chosen = replace(
            chosen, tap=model.tap, logits_processors=(lambda logits, _: logits + allowed.to(logits.device),)
        )
        prompts = [prompt_ids(model.tokenizer, model.config, text) for text in texts]
        if options.guidance == 1:
            found = [one.ids for one in generate_batched(model, prompts, chosen)]
        else:
            found = draw_guided(model, prompts, chosen, options.guidance)
        return [DrawnImage.from_codes(model, text, ids) for text, ids in zip(texts, found, strict=True)]

    def select(self, config: Config, records: Sequence[Record], options: Any, notes: list[str]) -> list[Record]:
        return select_decodable(select_usable(records, notes, caption=str, image=bytes), notes)

    def find_scorer(self, config: Config, records: Sequence[Record]) -> TaskScorer:
        return DrawingScorer(config)


DRAW = DrawTask()
