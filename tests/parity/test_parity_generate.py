"""Greedy and beam search write what transformers' generate writes, token for token, batch and single, in float64.

transformers stops a search by a bound that may cut it short unless it is told never to; ours is always safe.
"""

import pytest
import torch
from reference_models import cases, exact, pair

from qkv.decode import GenerationOptions, generate

GENERATIVE = cases(kinds=("lm",), families=("decoder", "seq2seq"))
NEW = 7


def reference(two, prompt: list[int], beam: int, penalty: float) -> list[int]:
    import transformers

    config = two.config
    settings = transformers.GenerationConfig(
        max_new_tokens=NEW,
        num_beams=beam,
        do_sample=False,
        length_penalty=penalty,
        early_stopping="never" if beam > 1 else False,
        pad_token_id=two.pad,
        eos_token_id=list(config.eos_token_ids),
        decoder_start_token_id=config.decoder_start_token_id if two.seq2seq else None,
        use_cache=False,  # its cache counts the encoder's layers, and these decoders have more
    )
    two.theirs64.generation_config = settings  # or its own would force an end at the last token
    ids = torch.tensor([prompt])
    with exact(), torch.no_grad():
        out = two.theirs64.generate(ids, attention_mask=torch.ones_like(ids), generation_config=settings)[0].tolist()
    new = out[1:] if two.seq2seq else out[len(prompt) :]
    ends = [i for i, token in enumerate(new) if token in config.eos_token_ids]
    return new[: ends[0]] if ends else new


@pytest.mark.parametrize(("beam", "penalty"), [(1, 1.0), (4, 1.0), (4, 0.0), (3, -0.5), (3, 2.0)])
@pytest.mark.parametrize("case", GENERATIVE)
def test_generate_writes_what_the_reference_writes(case, beam, penalty):
    two = pair(case)
    model = two.ours()
    if two.seq2seq and model.config.decoder_start_token_id is None:
        pytest.skip("mBART's decoder starts with a language, which its config does not name")
    prompts = [(text.source if two.seq2seq else text.ids).tolist() for text in two.texts]
    options = GenerationOptions(max_tokens=NEW, beam=beam, length_penalty=penalty)
    together = [result.ids for result in generate(model.network, prompts, options)]
    alone = [generate(model.network, [prompt], options)[0].ids for prompt in prompts]
    assert together == alone == [reference(two, prompt, beam, penalty) for prompt in prompts]
