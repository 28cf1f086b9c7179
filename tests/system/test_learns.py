"""Something learns: records → packed rows → a small encoder-decoder → right answers on texts it never saw."""

import random

import torch
from torch.nn import functional as F

import qkv
from qkv.data import IGNORE_INDEX, FileLocation, InMemoryExamples, Loader, Problems, Record, SequenceStream
from qkv.data.objectives.seq2seq import EncodePair, Seq2SeqObjective
from qkv.decode import GenerationOptions, generate
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
        "char",
        iter([LETTERS, LETTERS.upper()]),
        vocab_size=32,
        special_tokens=["pad", "bos", "eos", "unk"],
        template="eos",
    )
    records = [
        Record({"source": word, "target": word.upper()}, FileLocation("made", i)) for i, word in enumerate(train)
    ]
    examples = InMemoryExamples.from_records(records, EncodePair(tokenizer), Problems())
    loader = iter(
        Loader(SequenceStream(Seq2SeqObjective(examples, tokenizer, max_length=48), batch_tokens=1024, seed=3))
    )

    roles = tokenizer.special_tokens
    stack = qkv.StackConfig(
        vocab_size=tokenizer.vocab_size, width=48, layers=1, heads=4, ffn_width=96, position="rotary"
    )
    config = qkv.Config(
        encoder=stack,
        decoder=stack,
        head=qkv.HeadConfig(kind="lm", outputs=tokenizer.vocab_size, tied=True),
        share_embeddings=True,
        pad_token_id=roles.pad,
        decoder_start_token_id=roles.bos,
        eos_token_ids=(roles.eos,),
    )
    network = qkv.build(config)
    optimizer = torch.optim.AdamW(network.parameters(), lr=6e-3)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min((step + 1) / 20, 1 - step / STEPS))
    first = last = 0.0
    for _ in range(STEPS):
        batch = next(loader)
        logits = network(batch.inputs)
        loss = F.cross_entropy(logits.flatten(0, 1), batch.labels["tokens"].flatten(), ignore_index=IGNORE_INDEX)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        first, last = first or loss.item(), loss.item()
    assert last < first / 10

    network.eval()
    results = generate(network, [tokenizer.encode(word) for word in unseen], GenerationOptions(max_tokens=8), tokenizer)
    right = sum(result.text == word.upper() for result, word in zip(results, unseen, strict=True))
    assert right >= 54, f"{right} of 60 right"
