"""Whisper: folders of transformers in and out, with the same outputs for the same sounds."""

import numpy as np
import pytest
import torch
from reference_models import disturb, transformers

import qkv
from qkv.blocks import Inputs
from qkv.blocks.inputs import Prompt
from qkv.tasks.run.payloads import find_format, join_parts, make_item

SIZES = {
    "d_model": 24,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 3,
    "vocab_size": 60,
    "decoder_attention_heads": 3,
    "encoder_ffn_dim": 37,
    "decoder_ffn_dim": 37,
    "num_mel_bins": 80,
    "max_target_positions": 20,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 3,
    "suppress_tokens": None,
    "begin_suppress_tokens": None,
}
SOUND = np.random.default_rng(0).normal(0, 0.1, 16_000 * 2).astype(np.float32)


@pytest.fixture
def theirs():
    torch.manual_seed(0)
    made = transformers.WhisperForConditionalGeneration(transformers.WhisperConfig(**SIZES, max_source_positions=100))
    positions = made.model.encoder.embed_positions.weight.clone()
    disturb(made)
    made.model.encoder.embed_positions.weight.data = positions  # they are not trained
    return made.eval()


def logits_of(model: qkv.Model, sound: np.ndarray, target: list[int]) -> torch.Tensor:
    item = make_item(find_format(model.config), sound, "the sound")
    source = Inputs.from_sequences([Prompt(join_parts([item]).inputs)])
    with torch.no_grad():
        return model.network(Inputs(torch.tensor([target]), source=source))


def test_a_folder_gives_the_same_logits_and_is_written_again(theirs, tmp_path):
    theirs.save_pretrained(tmp_path / "whisper")
    ours = qkv.load(tmp_path / "whisper")
    extractor = transformers.WhisperFeatureExtractor(chunk_length=2)
    target = [3, 7, 9, 30, 5]
    with torch.no_grad():
        features = extractor(SOUND, sampling_rate=16_000, return_tensors="pt").input_features
        expected = theirs(input_features=features, decoder_input_ids=torch.tensor([target])).logits
    torch.testing.assert_close(logits_of(ours, SOUND, target), expected, atol=2e-4, rtol=1e-4)
    assert (logits_of(ours, 0 * SOUND, target) - expected).abs().max() > 5e-3, "silence is another sound"
    assert ours.export(tmp_path / "out") == "WhisperForConditionalGeneration"
    again = transformers.WhisperForConditionalGeneration.from_pretrained(tmp_path / "out").eval()
    state = again.state_dict()
    for name, value in theirs.state_dict().items():
        assert torch.equal(state[name], value), name


WORDS = ["<|endoftext|>", "<|startoftranscript|>", "<|en|>", "<|de|>", "<|transcribe|>", "<|notimestamps|>"]


def make_folder(theirs, folder):
    """A folder of the model with a tokenizer of bytes and Whisper's special tokens."""
    import tokenizers

    letters = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())[: SIZES["vocab_size"] - len(WORDS)]
    made = tokenizers.Tokenizer(tokenizers.models.BPE({one: i for i, one in enumerate(letters)}, []))
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    made.add_special_tokens(WORDS)
    theirs.save_pretrained(folder)
    transformers.PreTrainedTokenizerFast(tokenizer_object=made, eos_token=WORDS[0]).save_pretrained(folder)
    return made


@pytest.mark.parametrize("language", ["", "de"])
def test_texts_are_those_of_transformers(theirs, tmp_path, language):
    numbers = {word: SIZES["vocab_size"] - len(WORDS) + i for i, word in enumerate(WORDS)}
    theirs.config.decoder_start_token_id = numbers["<|startoftranscript|>"]
    theirs.config.eos_token_id = theirs.config.pad_token_id = numbers["<|endoftext|>"]
    tokenizer = make_folder(theirs, tmp_path / "whisper")
    ours = qkv.load(tmp_path / "whisper")
    sounds = [SOUND, SOUND[:9_000]]
    found = ours.transcribe(sounds, language=language)
    extractor = transformers.WhisperFeatureExtractor(chunk_length=2)
    for sound, one in zip(sounds, found, strict=True):
        features = extractor(sound, sampling_rate=16_000, return_tensors="pt").input_features
        ids = [numbers["<|startoftranscript|>"]]
        with torch.no_grad():
            encoded = theirs.model.encoder(features)

            def step(ids, encoded=encoded):
                return theirs(encoder_outputs=encoded, decoder_input_ids=torch.tensor([ids])).logits[0, -1]

            names = ["<|en|>", "<|de|>"]
            best = f"<|{language}|>" if language else names[int(step(ids)[[numbers[one] for one in names]].argmax())]
            ids += [numbers[best], numbers["<|transcribe|>"], numbers["<|notimestamps|>"]]
            while len(ids) < SIZES["max_target_positions"] and ids[-1] != numbers["<|endoftext|>"]:
                ids.append(int(step(ids).argmax()))
        assert one.text == tokenizer.decode(ids, skip_special_tokens=True).strip()
        assert one.duration == pytest.approx(len(sound) / 16_000)
        assert one.words == []
    if language:
        with pytest.raises(qkv.QkvError, match="'fr' is not a language of this model"):
            ours.transcribe(sounds, language="fr")
        assert ours.transcribe(np.tile(SOUND, 3)).duration == 6, "a long sound has several windows"
