"""Build a small Transformer, run it, and look at its attention weights.

python examples/first_steps.py
"""

import torch

import qkv

sentence = "the cat sat on the mat because it was tired"
words = sentence.split()
vocabulary = {word: i for i, word in enumerate(sorted(set(words)))}
ids = torch.tensor([[vocabulary[word] for word in words]])

# A small decoder, built from the same blocks as GPT-2.
config = qkv.Config(
    decoder=qkv.StackConfig(vocab_size=len(vocabulary), width=32, layers=2, heads=4, ffn_width=128, position="rotary"),
    head=qkv.HeadConfig(kind="lm", outputs=len(vocabulary), tied=True),
)
model = qkv.new(config, seed=1)
print(model)

# A forward pass with a tap that records the attention weights of the second layer. The fast kernels stay on.
tap = qkv.Tap(record=["decoder.1.pattern"])
logits = model.logits(ids, tap=tap)  # (1, words, vocabulary)
print(f"logits {tuple(logits.shape)}; the model is untrained, so all words are about equally likely:")
print(f"  highest probability: {logits.softmax(-1).max():.2f} (1/vocabulary = {1 / len(vocabulary):.2f})")

# The attention weights of head 0: each row (query) sums to one, and no query attends to a later word.
shades = " .:-=+*#%@"
print("\nattention, layer 1, head 0:")
for word, row in zip(words, tap["decoder.1.pattern"][0, 0], strict=True):
    print(f"  {word:>8} |" + "".join(2 * shades[min(int(10 * float(weight)), 9)] for weight in row) + "|")
