"""ViT and CLIP: folders of transformers in and out, with the same outputs and the same pixels."""

import json

import numpy as np
import pytest
import torch
from reference_models import apart, disturb, transformers

import qkv
from qkv.errors import QkvError
from qkv.images.files import load_image
from qkv.models.tables import find_architecture, read_config
from qkv.models.tables.summary import summarise_model

pytest.importorskip("PIL", reason="images need Pillow, which is not installed")
from PIL import Image
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
from transformers.models.vit.image_processing_pil_vit import ViTImageProcessorPil

SIZES = {"hidden_size": 24, "intermediate_size": 37, "num_hidden_layers": 2, "num_attention_heads": 3}
GRID = {"image_size": 12, "patch_size": 4}
SQUARE = {"height": 12, "width": 12}
TEXTS = ["a red cat", "two dogs on a mat"]
VIT = ViTImageProcessorPil(size=SQUARE)
CLIP = CLIPImageProcessorPil(size={"shortest_edge": 12}, crop_size=SQUARE)


def picture(width=31, height=23):
    return Image.fromarray(np.random.default_rng(width).integers(0, 255, (height, width, 3), dtype=np.uint8))


def write(model, folder, processor=None, **how):
    disturb(model)
    model.eval().save_pretrained(folder)
    if processor is not None:
        processor.save_pretrained(folder, **how)
    return folder


def clip_model():
    text = {**SIZES, "vocab_size": 41, "max_position_embeddings": 19, "bos_token_id": 1, "eos_token_id": 3}
    vision = {**SIZES, **GRID, "projection_dim": 10}
    return transformers.CLIPModel(
        transformers.CLIPConfig(text_config={**text, "projection_dim": 10}, vision_config=vision, projection_dim=10)
    )


@pytest.fixture
def clip(tmp_path):
    """A folder of both towers, with a tokenizer and an image processor; and the reference."""
    theirs = clip_model()
    folder = write(theirs, tmp_path / "clip", CLIP)
    words = sorted({letter for text in TEXTS for letter in text if letter != " "})
    tokens = ["<pad>", "<|startoftext|>", "<unk>", "<|endoftext|>", *words, *(f"{word}</w>" for word in words)]
    tokenizer = transformers.CLIPTokenizer(vocab={token: i for i, token in enumerate(tokens)}, merges=[])
    tokenizer.save_pretrained(folder)
    return folder, theirs, tokenizer


def test_a_classifier_of_images(tmp_path):
    theirs = transformers.ViTForImageClassification(transformers.ViTConfig(**SIZES, **GRID, num_labels=3))
    m = qkv.load(write(theirs, tmp_path / "vit", VIT))
    images = [picture(), picture(40, 12)]
    with torch.no_grad():
        expected = theirs(VIT(images, return_tensors="pt").pixel_values).logits.softmax(-1)
    for found, row in zip(m.classify(images), expected, strict=True):
        assert [found.probabilities[str(i)] for i in range(3)] == pytest.approx(row.tolist(), abs=1e-5)
    assert m.export(tmp_path / "out") == "ViTForImageClassification"
    again = transformers.ViTForImageClassification.from_pretrained(tmp_path / "out")
    assert all(
        torch.equal(a, b) for a, b in zip(theirs.state_dict().values(), again.state_dict().values(), strict=True)
    )
    processor = ViTImageProcessorPil.from_pretrained(tmp_path / "out")
    assert torch.equal(*(one(images, return_tensors="pt").pixel_values for one in (processor, VIT)))
    m.save(tmp_path / "own")
    assert qkv.load(tmp_path / "own").classify(images[0]).to_dict() == m.classify(images[0]).to_dict()


def test_the_flops_of_an_image_are_those_of_the_paper():
    """ViT-B/16: 17.6 billion multiplications and additions for an image of 224 × 224 pixels."""
    config = read_config(find_architecture("vit"), {"architectures": ["ViTModel"], "hidden_act": "gelu"})
    flops = summarise_model(config).flops_per_input["patches"]
    assert flops == pytest.approx(2 * 17.58e9, rel=0.005)


@pytest.mark.parametrize("has_pooler", [True, False])
def test_a_vit_without_a_head_embeds(tmp_path, has_pooler):
    theirs = transformers.ViTModel(transformers.ViTConfig(**SIZES, **GRID), add_pooling_layer=has_pooler)
    m = qkv.load(write(theirs, tmp_path / "vit", VIT))
    with torch.no_grad():
        found = theirs(VIT(picture(), return_tensors="pt").pixel_values)
    expected = found.pooler_output[0] if has_pooler else found.last_hidden_state[0, 0]
    assert apart(m.embed(picture()), expected) < 1e-5
    assert m.export(tmp_path / "out") == "ViTModel"
    assert apart(qkv.load(tmp_path / "out").embed(picture()), expected) < 1e-5


def test_both_towers_of_clip(clip, tmp_path):
    folder, theirs, tokenizer = clip
    images, texts = qkv.load(folder / "vision_model"), qkv.load(f"{folder}/text_model")
    with torch.no_grad():
        ids = tokenizer(TEXTS, return_tensors="pt", padding=True)
        said = theirs(**ids, pixel_values=CLIP([picture(), picture(12, 40)], return_tensors="pt").pixel_values)
    ours = torch.nn.functional.normalize(images.embed([picture(), picture(12, 40)]), dim=-1)
    assert apart(ours, said.image_embeds) < 1e-5
    words = torch.nn.functional.normalize(texts.embed(TEXTS), dim=-1)
    assert apart(words, said.text_embeds) < 1e-5
    scores = ours @ words.T * theirs.logit_scale.exp()
    assert apart(scores, said.logits_per_image) < 1e-4
    for model, name in ((images, "CLIPVisionModelWithProjection"), (texts, "CLIPTextModelWithProjection")):
        assert model.export(tmp_path / name) == name
        again = getattr(transformers, name).from_pretrained(tmp_path / name).state_dict()
        assert all(torch.equal(tensor, theirs.state_dict()[key]) for key, tensor in again.items())


def test_a_folder_of_both_towers_has_no_model_of_its_own(clip):
    folder, _, _ = clip
    with pytest.raises(QkvError, match=r"vision_model or .*text_model"):
        qkv.load(folder)


@pytest.mark.parametrize("processor", [VIT, CLIP], ids=["vit", "clip"])
@pytest.mark.parametrize("size", [(31, 23), (12, 12), (13, 12), (7, 200), (301, 8), (500, 333)])
def test_pixels_are_those_of_the_image_processor(tmp_path, processor, size):
    """The same bytes after resizing and cropping, and numbers that differ by rounding only."""
    theirs = transformers.CLIPVisionModel(transformers.CLIPVisionConfig(**SIZES, **GRID))
    m = qkv.load(write(theirs, tmp_path / "clip", processor))
    front_end = m.config.front_ends[0]
    pixels = load_image(picture(*size), front_end)
    expected = processor(picture(*size), return_tensors="np").pixel_values[0].transpose(1, 2, 0)
    bytes_of_theirs = (expected * np.array(front_end.std) + np.array(front_end.mean)) * 255
    assert np.abs(pixels - bytes_of_theirs).max() < 1e-3


def test_the_settings_may_be_in_the_processor_config(tmp_path):
    theirs = transformers.ViTForImageClassification(transformers.ViTConfig(**SIZES, **GRID, num_labels=3))
    folder = write(theirs, tmp_path / "vit", ViTImageProcessorPil(size=SQUARE, image_mean=[0.1, 0.2, 0.3], resample=3))
    values = json.loads((folder / "preprocessor_config.json").read_text())
    (folder / "preprocessor_config.json").unlink()
    default = qkv.load(folder).config.front_ends[0]
    (folder / "processor_config.json").write_text(json.dumps({"image_processor": values}))
    read = qkv.load(folder).config.front_ends[0]
    assert (read.mean, read.resample, default.mean) == ((0.1, 0.2, 0.3), "bicubic", (0.5, 0.5, 0.5))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"size": {"height": 16, "width": 16}}, "makes images of"),
        ({"size": {"shortest_edge": 12}}, "must also crop"),
        ({"do_resize": False}, "must resize"),
        ({"resample": 5}, "resample = 5"),
        ({"rescale_factor": 1.0}, "rescale_factor"),
    ],
)
def test_settings_that_cannot_be_read_are_an_error(tmp_path, change, message):
    theirs = transformers.ViTModel(transformers.ViTConfig(**SIZES, **GRID))
    folder = write(theirs, tmp_path / "vit", VIT)
    path = folder / "preprocessor_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(QkvError, match=message):
        qkv.load(folder)
