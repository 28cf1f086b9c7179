"""Something learns: records → packed rows → a small encoder-decoder → right answers on texts it never saw."""

import random

import torch
from torch.nn import functional as F

import qkv
from qkv.data import IGNORE, EncodePair, Loader, MemoryExamples, Pairs, Problems, Record, Rows, Where
from qkv.decode import Options, generate
from qkv.text import Tokenizer

LETTERS = "abcdefgh"
STEPS = 300


def words(count: int, seed: int) -> list[str]:
    draw = random.Random(seed)
    return ["".join(draw.choice(LETTERS) for _ in range(draw.randint(2, 5))) for _ in range(count)]


def test_a_small_translator_learns_to_spell_in_capitals_from_packed_rows() -> None:
    torch.manual_seed(0)
    train = words(1500, seed=1)
    unseen = sorted(set(words(300, seed=2)) - set(train))[:60]
    assert len(unseen) == 60
    tokenizer = Tokenizer.train(
        "char", iter([LETTERS, LETTERS.upper()]), size=32, roles=["pad", "start", "end", "unknown"], template="end"
    )
    records = [Record({"source": word, "target": word.upper()}, Where("made", i)) for i, word in enumerate(train)]
    examples = MemoryExamples.encoded(records, EncodePair(tokenizer), Problems())
    loader = iter(Loader(Rows(Pairs(examples, tokenizer, length=48), batch_tokens=1024, seed=3)))

    roles = tokenizer.roles
    stack = qkv.StackConfig(vocab=tokenizer.size, width=48, layers=1, heads=4, ffn_width=96, position="rotary")
    config = qkv.Config(
        encoder=stack,
        decoder=stack,
        head=qkv.HeadConfig(kind="lm", outputs=tokenizer.size, tied=True),
        shared_embedding=True,
        pad=roles.pad,
        start=roles.start,
        end=(roles.end,),
    )
    network = qkv.build(config)
    optimizer = torch.optim.AdamW(network.parameters(), lr=6e-3)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min((step + 1) / 20, 1 - step / STEPS))
    first = last = 0.0
    for _ in range(STEPS):
        batch = next(loader)
        logits = network(
            batch.source_ids,
            batch.ids,
            batch.source_segment,
            batch.segment,
            batch.source_position,
            batch.position,
            texts=batch.texts,
        )
        loss = F.cross_entropy(logits.flatten(0, 1), batch.labels.flatten(), ignore_index=IGNORE)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        first, last = first or loss.item(), loss.item()
    assert last < first / 10

    network.eval()
    results = generate(network, [tokenizer.encode(word) for word in unseen], Options(max_tokens=8), tokenizer)
    right = sum(result.text == word.upper() for result, word in zip(results, unseen, strict=True))
    assert right >= 54, f"{right} of 60 right"
