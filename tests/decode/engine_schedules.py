"""Random schedules for the engine: who arrives when, who is cancelled when, in how little memory.

What each request must write is known: `generate` says it, alone. Requests are drawn from a small pool, so that its
answers can be kept, prompts share their beginnings, and many equal texts are written at once.
"""

from dataclasses import dataclass
from functools import cache
from random import Random

import torch

from qkv.blocks import HeadConfig, StackConfig
from qkv.decode import Engine, Options, Request, Result, generate
from qkv.models import Config, Network, build
from qkv.text import Tokenizer

START, END = 1, 2
LETTERS = "abcdefghij"


@cache
def letters() -> Tokenizer:
    return Tokenizer.train("char", iter([LETTERS]), size=14, roles=["pad", "start", "end", "unknown"])


@cache
def small(kind: str) -> Network:
    """A random float64 model: its family, and after a hyphen what is special about it."""
    family, _, rest = kind.partition("-")
    vocab = letters().size
    stack = StackConfig(
        vocab=vocab,
        width=8,
        layers=1 if rest in ("learned", "t5") else 2,
        heads=2,
        ffn_width=8,
        kv_heads=1 if "grouped" in rest else 0,
        window=3 if "window" in rest else 0,
        position=next((p for p in ("learned", "alibi", "t5") if p in rest), "rotary"),  # type: ignore[arg-type]
        max_positions=40,
        init_std=0.6,
    )
    torch.manual_seed(len(kind))
    config = Config(
        encoder=stack if family == "seq2seq" else None,
        decoder=stack,
        head=HeadConfig(kind="lm", outputs=vocab),
        pad=0,
        start=START,
        end=(END,),
    )
    network = build(config, dtype=torch.float64).eval()
    with torch.no_grad():
        network.head.out.weight.mul_(3.0)
    if "window" in rest:
        network.decoder.kernel = "plain"  # type: ignore[union-attr]  # the reference, and no short cuts beside it
    return network


def pool_of_prompts() -> list[tuple[int, ...]]:
    """Texts that begin alike: parts of three stems, some with other tokens after them."""
    random = Random(1)

    def some(count: int) -> tuple[int, ...]:
        return tuple(random.randrange(4, 14) for _ in range(count))

    stems = [some(2), some(4), some(7)]
    return [s[: random.randint(1, len(s))] + some(random.choice([0, 0, 1, 3])) for s in stems for _ in range(4)]


PROMPTS = pool_of_prompts()
OPTIONS = [
    Options(max_tokens=5),
    Options(max_tokens=1),
    Options(max_tokens=7, min_tokens=3),
    Options(max_tokens=7, stop=("ab", "ca", "e")),
    Options(max_tokens=4, repetition_penalty=1.5, logprobs=3),
    Options(max_tokens=6, no_repeat=2, banned=(5, 7)),
    Options(max_tokens=4, prefix=(6, 4, 4)),
    Options(max_tokens=6, temperature=1.0, seed=5),
    Options(max_tokens=5, temperature=1.7, seed=6, top_k=4, logprobs=1),
    Options(max_tokens=5, temperature=0.8, seed=7, top_p=0.8),
    Options(max_tokens=6, temperature=1.3, seed=8, min_p=0.1, repetition_penalty=1.2, min_tokens=6),
    Options(max_tokens=4, filters=(lambda logits, tokens: logits.roll(1, -1) if tokens.shape[1] % 2 else logits,)),
]


@cache
def alone(kind: str, prompt: int, options: int) -> Result:
    """What `generate` writes for one request by itself."""
    return generate(small(kind), [PROMPTS[prompt]], OPTIONS[options], letters())[0]


@dataclass
class Ask:
    """One request of a schedule."""

    prompt: int
    options: int
    arrives: int  # before which step
    cancelled: int | None  # before which step, if at all


@dataclass
class Plan:
    """One schedule."""

    asks: list[Ask]
    rows: int
    pages: int
    page_size: int
    read_at_once: int


def draw_plan(kind: str, random: Random) -> Plan:
    """Little memory: the largest request fits alone, and not much beside it."""
    asks = [
        Ask(
            random.randrange(len(PROMPTS)),
            random.randrange(len(OPTIONS)),
            random.randrange(4),
            random.randrange(8) if random.random() < 0.25 else None,
        )
        for _ in range(random.choice([2, 2, 3, 4]))
    ]
    size = random.randint(1, 4)
    read = [1 if kind.startswith("seq2seq") else len(PROMPTS[ask.prompt]) for ask in asks]
    chosen = [OPTIONS[ask.options] for ask in asks]
    longest = max(n + len(o.prefix) + o.max_tokens - 1 for n, o in zip(read, chosen, strict=True))
    return Plan(asks, random.randint(2, 4), -(-longest // size) + random.randint(0, 2), size, random.choice([1, 8, 99]))


def carry_out(kind: str, plan: Plan) -> tuple[Engine, list[tuple[Ask, Request]]]:
    """Run a schedule to its end; requests in the order in which they were submitted."""
    engine = Engine(
        small(kind),
        letters(),
        rows=plan.rows,
        pages=plan.pages,
        page_size=plan.page_size,
        read_at_once=plan.read_at_once,
    )
    made: list[tuple[Ask, Request]] = []
    coming = sorted(plan.asks, key=lambda ask: ask.arrives)
    step = 0
    while True:
        while coming and coming[0].arrives <= step:
            ask = coming.pop(0)
            made.append((ask, engine.submit(PROMPTS[ask.prompt], OPTIONS[ask.options])))
        for ask, request in made:
            if ask.cancelled is not None and ask.cancelled <= step:
                engine.cancel(request)
        more = engine.step()
        check_memory(engine)
        if not more and not coming:
            blank = [t[0] for t in (*engine.pages.keys, *engine.pages.values)]
            assert not any(t.any() for t in blank), "the blank page was written"
            return engine, made
        step += 1


def check_memory(engine: Engine) -> None:
    """Every page is spare, or known, or one request's own; and known ones have as many holders as are counted."""
    pages, schedule = engine.pages, engine._schedule
    held = [page for request in schedule.running for page in request.own]
    known, heads = [], list(pages._roots.values())
    while heads:
        below = list(heads.pop().below.values())
        known += below
        heads += below
    assert sorted([*pages._spare, *held, *(one.page for one in known)]) == list(range(1, pages.count + 1))
    for one in known:
        assert one.holders == sum(one in request.known for request in schedule.running)
        assert (one.page in pages._unheld) == (one.holders == 0)
    for request in schedule.waiting:
        assert not request.table
    assert pages.free == pages.count - len({p for r in schedule.running for p in r.table})
    assert [r.number for r in schedule.running] == sorted(r.number for r in schedule.running)
    assert [r.number for r in schedule.waiting] == sorted(r.number for r in schedule.waiting)
