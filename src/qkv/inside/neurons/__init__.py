"""Neurons: which examples of a corpus excite a unit most, and which tokens it promotes.

examples = encode_examples(network, tokenizer, texts)
found = top_examples(network, examples, "decoder.3.mlp_post", [5, 17], tokenizer=tokenizer)
print(found[5].examples[0].text)
print(vocabulary_effect(network, 3, 5, tokenizer).promoted)
"""

from qkv.inside.neurons.top_examples import (
    ActivatingExample,
    UnitExamples,
    check_per_token_site,
    stream_site,
    top_examples,
)
from qkv.inside.neurons.vocabulary import (
    TokenEffect,
    VocabularyEffect,
    direction_effect,
    direction_logits,
    promoted_texts,
    vocabulary_effect,
)

__all__ = [
    "ActivatingExample",
    "TokenEffect",
    "UnitExamples",
    "VocabularyEffect",
    "check_per_token_site",
    "direction_effect",
    "direction_logits",
    "promoted_texts",
    "stream_site",
    "top_examples",
    "vocabulary_effect",
]
