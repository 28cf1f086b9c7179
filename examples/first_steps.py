"""A Transformer of your own in a few lines: build it, run it, look inside.

python examples/first_steps.py
"""

import torch

import qkv

sentence = "the cat sat on the mat because it was tired"
words = sentence.split()
vocabulary = {word: i for i, word in enumerate(sorted(set(words)))}
ids = torch.tensor([[vocabulary[word] for word in words]])

# A small decoder: the same blocks as GPT-2, at a size that fits on a page.
config = qkv.Config(
    decoder=qkv.StackConfig(vocab_size=len(vocabulary), width=32, layers=2, heads=4, ffn_width=128, position="rotary"),
    head=qkv.HeadConfig(kind="lm", outputs=len(vocabulary), tied=True),
)
model = qkv.new(config, seed=1)
print(model)

# A forward pass, with a tap on the second layer's attention. Fast kernels stay on.
tap = qkv.Tap(record=["decoder.1.pattern"])
logits = model.logits(ids, tap=tap)  # (1, words, vocabulary)
print(f"logits {tuple(logits.shape)}; untrained, so every word is about as likely as any other:")
print(
    f"  highest probability of a next word: {logits.softmax(-1).max():.2f} (1/vocabulary = {1 / len(vocabulary):.2f})"
)

# Who looks at whom in head 0: each row sums to one, and nobody sees the future.
shades = " .:-=+*#%@"
print("\nattention, layer 1, head 0:")
for word, row in zip(words, tap["decoder.1.pattern"][0, 0], strict=True):
    print(f"  {word:>8} |" + "".join(2 * shades[min(int(10 * float(weight)), 9)] for weight in row) + "|")
