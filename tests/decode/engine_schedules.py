"""Random schedules for the engine: who arrives when, who is cancelled when, in how little memory.

What each request must write is known: `generate` says it, alone. Requests are drawn from a small pool, so that its
answers can be kept, prompts share their beginnings, and many equal texts are written at once.
"""

from dataclasses import dataclass
from functools import cache
from random import Random

import torch

from qkv.blocks import HeadConfig, StackConfig
from qkv.decode import Engine, GenerationOptions, GenerationResult, Request, generate
from qkv.models import Config, Network, build
from qkv.text import Tokenizer

START, END = 1, 2
LETTERS = "abcdefghij"


@cache
def letters() -> Tokenizer:
    return Tokenizer.train("char", iter([LETTERS]), vocab_size=14, special_tokens=["pad", "bos", "eos", "unk"])


@cache
def small(kind: str) -> Network:
    """A random float64 model: its family, and after a hyphen what is special about it."""
    family, _, rest = kind.partition("-")
    vocab = letters().vocab_size
    stack = StackConfig(
        vocab_size=vocab,
        width=8,
        layers=1 if rest in ("learned", "t5") else 2,
        heads=2,
        ffn_width=8,
        kv_heads=1 if "grouped" in rest else 0,
        sliding_window=3 if "window" in rest else 0,
        position=next((p for p in ("learned", "alibi", "t5") if p in rest), "rotary"),  # type: ignore[arg-type]
        max_positions=40,
        init_std=0.6,
    )
    torch.manual_seed(len(kind))
    config = Config(
        encoder=stack if family == "seq2seq" else None,
        decoder=stack,
        head=HeadConfig(kind="lm", outputs=vocab),
        pad_token_id=0,
        decoder_start_token_id=START,
        eos_token_ids=(END,),
    )
    network = build(config, dtype=torch.float64).eval()
    with torch.no_grad():
        network.head.out.weight.mul_(3.0)
    if "window" in rest:
        network.decoder.kernel = "eager"  # type: ignore[union-attr]  # the reference, and no short cuts beside it
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
    GenerationOptions(max_tokens=5),
    GenerationOptions(max_tokens=1),
    GenerationOptions(max_tokens=7, min_tokens=3),
    GenerationOptions(max_tokens=7, stop=("ab", "ca", "e")),
    GenerationOptions(max_tokens=4, repetition_penalty=1.5, logprobs=3),
    GenerationOptions(max_tokens=6, no_repeat_ngram_size=2, suppress_tokens=(5, 7)),
    GenerationOptions(max_tokens=4, prefix=(6, 4, 4)),
    GenerationOptions(max_tokens=6, temperature=1.0, seed=5),
    GenerationOptions(max_tokens=5, temperature=1.7, seed=6, top_k=4, logprobs=1),
    GenerationOptions(max_tokens=5, temperature=0.8, seed=7, top_p=0.8),
    GenerationOptions(max_tokens=6, temperature=1.3, seed=8, min_p=0.1, repetition_penalty=1.2, min_tokens=6),
    GenerationOptions(
        max_tokens=4, logits_processors=(lambda logits, tokens: logits.roll(1, -1) if tokens.shape[1] % 2 else logits,)
    ),
]


@cache
def alone(kind: str, prompt: int, options: int) -> GenerationResult:
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
        max_sequences=plan.rows,
        num_pages=plan.pages,
        page_size=plan.page_size,
        max_prefill_tokens=plan.read_at_once,
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
            blank = [t[0] for t in (*engine.page_pool.keys, *engine.page_pool.values)]
            assert not any(t.any() for t in blank), "the blank page was written"
            return engine, made
        step += 1


def check_memory(engine: Engine) -> None:
    """Every page is spare, or known, or one request's own; and known ones have as many holders as are counted."""
    pages, schedule = engine.page_pool, engine._scheduler
    held = [page for request in schedule.running for page in request.own_pages]
    known, heads = [], list(pages._roots.values())
    while heads:
        below = list(heads.pop().children.values())
        known += below
        heads += below
    assert sorted([*pages._free, *held, *(one.page for one in known)]) == list(range(1, pages.num_pages + 1))
    for one in known:
        assert one.num_holders == sum(one in request.shared_pages for request in schedule.running)
        assert (one.page in pages._unused) == (one.num_holders == 0)
    for request in schedule.waiting:
        assert not request.page_table
    assert pages.num_available == pages.num_pages - len({p for r in schedule.running for p in r.page_table})
    assert [r.request_id for r in schedule.running] == sorted(r.request_id for r in schedule.running)
    assert [r.request_id for r in schedule.waiting] == sorted(r.request_id for r in schedule.waiting)


def check(kind: str, plan: Plan) -> dict[str, int]:
    engine, made = carry_out(kind, plan)
    cancelled = 0
    for ask, request in made:
        wanted = alone(kind, ask.prompt, ask.options)
        if request.state == "cancelled":
            cancelled += 1
            assert ask.cancelled is not None
            assert request.ids == wanted.ids[: len(request.ids)]
            assert request.result is None
            continue
        assert request.state == "done", request.error
        result = request.result
        assert result is not None
        assert result.ids == wanted.ids
        assert (result.text, result.finish_reason) == (wanted.text, wanted.finish_reason)
        assert "".join(request.pending_text) == wanted.text
        assert abs(result.score - wanted.score) < 1e-9
        assert [entry.id for entry in result.logprobs] == [entry.id for entry in wanted.logprobs]
        assert [list(e.alternatives) for e in result.logprobs] == [list(e.alternatives) for e in wanted.logprobs]
    assert engine.page_pool.num_available == engine.page_pool.num_pages
    engine.page_pool.evict_unused()
    assert len(engine.page_pool._free) == engine.page_pool.num_pages
    assert not engine.page_pool._roots
    counts = engine.stats
    return {
        "cancelled": cancelled,
        "set back": counts.preemptions,
        "reused": counts.reused_tokens,
        "evicted": engine.page_pool.num_evicted,
    }
