"""The engine, one property at a time: the line, the limits, cancelling, sharing, failing, streaming, threads."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from random import Random
from typing import Any

import pytest
import torch
from engine_schedules import OPTIONS, PROMPTS, alone, carry_out, check_memory, draw_plan, letters, small

from qkv.decode import Engine, GenerationOptions, Request, generate
from qkv.decode.cpu import step as fast_cpu
from qkv.decode.engine.pages import PagePool
from qkv.errors import QkvError, UsageError
from qkv.models import Network

PROMPT = [5, 9, 4, 4, 11, 8, 6, 12, 10]
GREEDY = GenerationOptions(max_tokens=6, suppress_tokens=(2,))  # no end: all six are written


def engine(kind: str = "decoder", **sizes: int) -> Engine:
    return Engine(small(kind), letters(), **({"max_sequences": 4, "num_pages": 40, "page_size": 4} | sizes))


def expected(kind: str, prompt: list[int], options: GenerationOptions = GREEDY) -> list[int]:
    return generate(small(kind), [prompt], options, letters())[0].ids


def check(kind: str, request: Request, prompt: list[int], options: GenerationOptions = GREEDY) -> None:
    """It wrote what it would have written alone; scores show what tokens may hide."""
    wanted = generate(small(kind), [prompt], options, letters())[0]
    assert request.result.ids == wanted.ids
    assert request.result.score == pytest.approx(wanted.score, abs=1e-9)


# ── The line ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_text_that_ends_frees_its_place_for_the_next_in_line() -> None:
    e = engine(max_sequences=2)
    short, long, next_ = (e.submit(PROMPT, replace(GREEDY, max_tokens=n)) for n in (2, 6, 6))
    e.step()
    assert [r.state for r in (short, long, next_)] == ["running", "running", "waiting"]
    e.step()
    assert [r.state for r in (short, long, next_)] == ["done", "running", "waiting"]
    e.step()
    assert [len(r.ids) for r in (short, long, next_)] == [2, 3, 1], "it joins in the middle of another text"


def test_one_that_does_not_fit_yet_waits_and_is_not_overtaken() -> None:
    e = engine(num_pages=5, max_sequences=4)
    first = e.submit(PROMPT[:2], replace(GREEDY, max_tokens=11))  # three pages in the end
    big = e.submit(PROMPT, GREEDY)  # three pages at once
    tiny = e.submit(PROMPT[:1], replace(GREEDY, max_tokens=1))
    for _ in range(6):
        e.step()
    e.page_pool.evict_unused()
    assert first.state == "running"
    assert (big.state, tiny.state) == ("waiting", "waiting")
    e.run()
    check("decoder", first, PROMPT[:2], first.options)
    check("decoder", big, PROMPT)
    assert tiny.state == "done"


def test_the_youngest_makes_room_and_what_it_wrote_stays_written() -> None:
    e = engine(num_pages=8, page_size=2, max_sequences=2)
    older, younger = (e.submit(PROMPT[n : n + 4], replace(GREEDY, max_tokens=9)) for n in (0, 4))
    before: list[int] = []
    while e.stats.preemptions == 0:
        before = list(younger.ids)
        assert e.step()
    assert (older.state, younger.state) == ("running", "waiting")
    assert before
    assert younger.ids == before
    assert not younger.page_table
    e.run()
    for request, n in ((older, 0), (younger, 4)):
        check("decoder", request, PROMPT[n : n + 4], request.options)


def test_a_step_reads_no_more_of_new_prompts_than_it_may() -> None:
    e = engine(max_prefill_tokens=10)
    requests = [e.submit([n, *PROMPT[1:5]], GREEDY) for n in (4, 5, 6)]
    e.step()
    assert [r.state for r in requests] == ["running", "running", "waiting"]
    long = engine(max_prefill_tokens=2)
    alone = long.submit(PROMPT, GREEDY)
    long.step()
    assert alone.state == "running", "one prompt is read, however long"


# ── Limits ───────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("prompt", "options", "message"),
    [
        (PROMPT, replace(GREEDY, max_tokens=30), "need 10 pages of 4 tokens, and this engine has 9"),
        (
            PROMPT,
            GenerationOptions(beam=2),
            "beam = 2: the engine has no beam search",
        ),
        ([14], GREEDY, "token id 14 is outside this model's vocabulary of 14"),
        ([], GREEDY, "is empty"),
        (PROMPT, GenerationOptions(temperature=-1.0), "temperature"),
    ],
)
def test_what_can_never_be_written_is_refused_with_the_limit(
    prompt: list[int], options: GenerationOptions, message: str
) -> None:
    e = engine(num_pages=9)
    with pytest.raises(UsageError, match=message):
        e.submit(prompt, options)
    assert not e.step(), "nothing of it is left behind"


def test_a_request_may_fill_every_page() -> None:
    e = engine(num_pages=9)
    options = replace(GREEDY, max_tokens=28)  # 9 + 28 − 1 = 36 tokens
    assert e.result(e.submit(PROMPT, options)).ids == expected("decoder", PROMPT, options)


def test_positions_that_end_are_a_limit_too() -> None:
    with pytest.raises(UsageError, match="40 positions"):
        engine("decoder-learned").submit(PROMPT, replace(GREEDY, max_tokens=32))


def test_stop_texts_need_a_tokenizer() -> None:
    with pytest.raises(QkvError, match="tokenizer"):
        Engine(small("decoder")).submit(PROMPT, GenerationOptions(stop=("a",)))


@pytest.mark.parametrize("name", ["max_sequences", "num_pages", "page_size", "max_prefill_tokens"])
def test_sizes_are_checked(name: str) -> None:
    with pytest.raises(UsageError, match=f"{name} = 0"):
        engine(**{name: 0})


# ── Cancelling ───────────────────────────────────────────────────────────────────────────────────────────────────


def test_cancelling_frees_all_that_was_held_and_leaves_others_alone() -> None:
    e = engine("seq2seq", max_sequences=2)
    stays, goes, waits = (e.submit(PROMPT, GREEDY) for _ in range(3))
    e.step()
    e.step()
    for request in (goes, waits):
        e.cancel(request)
    e.step()
    assert (goes.state, waits.state) == ("cancelled", "cancelled")
    assert goes.cross_cache is None
    check_memory(e)
    assert e.page_pool.num_available == e.page_pool.num_pages - len(stays.page_table)
    with pytest.raises(QkvError, match="request 1 was cancelled after 2 tokens"):
        e.result(goes)
    assert e.result(stays).ids == expected("seq2seq", PROMPT)
    e.cancel(stays)
    e.step()
    assert stays.state == "done", "what has ended stays as it is"


# ── Sharing ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_running_texts_that_begin_alike_point_to_the_same_pages() -> None:
    e = engine()
    first = e.submit(PROMPT, GREEDY)
    e.step()
    second = e.submit([*PROMPT, 7], GREEDY)
    e.step()
    assert first.page_table[:2] == second.page_table[:2]
    assert not set(first.page_table[2:]) & set(second.page_table[2:])
    assert (e.stats.reused_tokens, e.stats.prompt_tokens) == (8, 9 + 2)
    e.run()
    check("decoder", second, [*PROMPT, 7])


def test_texts_that_join_in_one_step_share_what_that_step_writes() -> None:
    e = engine()
    requests = [e.submit([*PROMPT, n], GREEDY) for n in (4, 5, 6)]
    e.step()
    assert len({page for r in requests for page in r.page_table}) == 2 + 3
    assert e.stats.reused_tokens == 16
    e.run()
    for request, n in zip(requests, (4, 5, 6), strict=True):
        check("decoder", request, [*PROMPT, n])


def test_a_page_that_is_written_later_in_a_step_is_not_shared_before() -> None:
    """Of three that join, the first has one token left to read and goes on after the others were read."""
    e = engine(page_size=1)
    e.result(e.submit(PROMPT[:3], replace(GREEDY, max_tokens=1)))
    asked = [PROMPT[:4], PROMPT[:6], PROMPT[:5]]
    requests = [e.submit(prompt, GREEDY) for prompt in asked]
    e.run()
    for request, prompt in zip(requests, asked, strict=True):
        check("decoder", request, prompt)


def test_a_text_goes_on_from_an_earlier_answer() -> None:
    """A conversation: the next prompt holds the last one and its answer."""
    e = engine()
    answer = e.result(e.submit(PROMPT, GREEDY)).ids
    read = e.stats.prompt_tokens
    again = [*PROMPT, *answer, 7]
    assert e.result(e.submit(again, GREEDY)).ids == expected("decoder", again)
    assert e.stats.prompt_tokens - read == len(again) - 12, "of its 16 tokens, three pages were known"


def test_targets_of_different_sources_never_share() -> None:
    options = replace(GREEDY, prefix=(5, 5, 5, 5, 5, 5, 5, 5))
    e = engine("seq2seq")
    requests = [e.submit(source, options) for source in (PROMPT, PROMPT[::-1], PROMPT)]
    e.step()
    assert e.stats.reused_tokens == 8, "the third shares with the first alone"
    e.run()
    for request, source in zip(requests, (PROMPT, PROMPT[::-1], PROMPT), strict=True):
        check("seq2seq", request, source, options)


def test_beginnings_that_nobody_uses_make_way_the_oldest_and_the_latest_pages_first() -> None:
    e = engine(num_pages=6, page_size=2)
    one = replace(GREEDY, max_tokens=1)
    for start in (4, 5):
        e.result(e.submit([start, 6, 6, 6, 7], one))  # two full pages are remembered, one is spare again
    assert len(e.page_pool._free) == 2
    e.result(e.submit([9, 9, 8, 8, 8], one))
    origin, kept = None, []
    for start in (4, 5):
        kept.append(len(e.page_pool.match_prefix(origin, [start, 6, 6, 6])))
    assert kept == [1, 2], "the last page of the oldest text went, and nothing else"
    assert e.page_pool.num_evicted == 1


def test_what_old_texts_left_in_a_page_does_not_leak() -> None:
    """Trap 2: a slot that is not yet written has weight zero, and zero times NaN is NaN."""
    e = engine(num_pages=5)
    e.result(e.submit(PROMPT, GREEDY))
    e.page_pool.evict_unused()
    for tensor in (*e.page_pool.keys, *e.page_pool.values):
        tensor[1:] = float("nan")
    assert e.result(e.submit(PROMPT[:6], GREEDY)).ids == expected("decoder", PROMPT[:6])


# ── Failing ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_filter_that_raises_ends_its_own_request_alone() -> None:
    def bad(logits: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        if tokens.shape[1] > len(PROMPT) + 1:
            raise QkvError("no further")
        return logits

    e = engine()
    good, ends = e.submit(PROMPT, GREEDY), e.submit(PROMPT, replace(GREEDY, logits_processors=(bad,)))
    forbidden = e.submit(PROMPT, replace(GREEDY, suppress_tokens=tuple(range(14))))
    e.run()
    check("decoder", good, PROMPT)
    assert ends.ids == good.ids[:2]
    with pytest.raises(QkvError, match="no further"):
        e.result(ends)
    with pytest.raises(QkvError, match="every token is forbidden"):
        list(e.stream(forbidden))
    check_memory(e)
    assert e.page_pool.num_available == e.page_pool.num_pages


class Broken:
    """A network whose next run breaks."""

    def __init__(self, network: Network, error: BaseException) -> None:
        self.network, self.error, self.left = network, error, 0
        self.inner = network.head.transform

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        out = self.inner(*args, **kwargs)
        if self.left:
            self.left -= 1
            raise self.error
        return out


@pytest.fixture
def break_next(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Broken]:
    def make(kind: str, error: BaseException) -> Broken:
        broken = Broken(small(kind), error)
        monkeypatch.setattr(small(kind).head, "transform", broken)
        return broken

    return make


@pytest.mark.parametrize("kind", ["decoder", "seq2seq"])
def test_a_run_that_breaks_ends_its_batch_and_the_engine_goes_on(kind: str, break_next: Callable[..., Broken]) -> None:
    wanted = expected(kind, PROMPT)
    broken = break_next(kind, RuntimeError("out of memory"))
    e = engine(kind)
    running = e.submit(PROMPT[:3], GREEDY)
    e.step()
    options = replace(GREEDY, prefix=(7, 7, 7, 7))
    joins = e.submit([*PROMPT, 7], options)
    broken.left = 1
    e.step()
    with pytest.raises(RuntimeError, match="out of memory"):
        e.result(joins)
    check_memory(e)
    assert e.result(running).ids == expected(kind, PROMPT[:3]), "it was in another batch"
    assert e.result(e.submit(PROMPT, GREEDY)).ids == wanted
    assert e.result(e.submit([*PROMPT, 7], options)).ids == expected(kind, [*PROMPT, 7], options)
    assert e.page_pool.num_available == e.page_pool.num_pages


@pytest.mark.parametrize("at", [0, 1, 2])
def test_a_step_that_is_interrupted_can_be_taken_again(at: int, break_next: Callable[..., Broken]) -> None:
    wanted = [expected("decoder", [*PROMPT, n]) for n in (4, 5)]
    broken = break_next("decoder", KeyboardInterrupt())
    e = engine()
    requests = [e.submit([*PROMPT, n], GREEDY) for n in (4, 5)]
    for _ in range(at):
        e.step()
    broken.left = 1
    with pytest.raises(KeyboardInterrupt):
        e.step()
    e.run()
    assert [r.ids for r in requests] == wanted
    assert e.page_pool.num_available == e.page_pool.num_pages


@pytest.mark.parametrize("kind", ["decoder", "seq2seq", "decoder-grouped"])
def test_many_texts_at_once_are_written_as_alone(kind: str) -> None:
    """So many rows that attention is written as batched products, over pages that do not lie as rows of a cache do."""
    e = engine(kind, max_sequences=fast_cpu.MIN_BATCHED_QUERIES + 2, num_pages=80)
    prompts = [[*PROMPT[: 1 + n % 5], 3 + n] for n in range(fast_cpu.MIN_BATCHED_QUERIES + 2)]
    requests = [e.submit(prompt, GREEDY) for prompt in prompts]
    e.run()
    for request, prompt in zip(requests, prompts, strict=True):
        check(kind, request, prompt)
    assert e.page_pool.num_available == e.page_pool.num_pages


# ── Streams, listeners, threads ──────────────────────────────────────────────────────────────────────────────────


def test_a_stream_is_the_text_and_drives_everyone() -> None:
    e = engine()
    streamed, other = e.submit(PROMPT, GREEDY), e.submit(PROMPT[:4], GREEDY)
    pieces = list(e.stream(streamed))
    assert len(pieces) > 1
    assert "".join(pieces) == streamed.text == generate(small("decoder"), [PROMPT], GREEDY, letters())[0].text
    assert other.state == "done"


def test_listeners_hear_every_token_and_the_end_and_one_that_raises_ends_its_request() -> None:
    heard: list[tuple[int, str]] = []

    def bad(_: object) -> None:
        raise ValueError("gone")

    e = engine()
    e.submit(PROMPT, GREEDY, lambda r: heard.append((len(r.ids), r.state)))
    gone = e.submit(PROMPT, GREEDY, bad)
    e.run()
    assert heard == [*((n, "running") for n in range(1, 6)), (6, "done")]
    assert (gone.state, len(gone.ids)) == ("failed", 1)
    assert e.page_pool.num_available == e.page_pool.num_pages


def test_listeners_hear_that_their_source_could_not_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise RuntimeError("no memory")

    monkeypatch.setattr(small("seq2seq"), "encode", broken)
    heard: list[str] = []
    made = engine("seq2seq")
    request = made.submit(PROMPT, GREEDY, on_change=lambda request: heard.append(request.state))
    made.run()
    assert isinstance(request.error, RuntimeError)
    assert heard == ["failed"]


def test_waiting_for_work() -> None:
    e = engine()
    assert not e.wait(0.0)
    request = e.submit(PROMPT, GREEDY)
    assert e.wait(0.0)
    e.run()
    assert request.is_finished
    assert not e.wait(0.0)


@pytest.mark.parametrize("driven", ["by a thread of its own", "by those who wait"])
def test_many_threads_may_ask_and_cancel_while_steps_are_taken(driven: str) -> None:
    e = engine(max_sequences=3, num_pages=20)
    closing = threading.Event()

    def drive() -> None:
        while not closing.is_set():
            if e.wait(0.01):
                e.step()

    driver = threading.Thread(target=drive)
    if driven == "by a thread of its own":
        driver.start()

    def client(number: int) -> int:
        random, right = Random(number), 0
        for _ in range(4):
            prompt, options = random.randrange(len(PROMPTS)), random.randrange(len(OPTIONS))
            request = e.submit(PROMPTS[prompt], OPTIONS[options])
            if random.random() < 0.3:
                e.cancel(request)
                with suppress(QkvError):
                    e.result(request)
            else:
                assert "".join(e.stream(request)) == wanted[prompt, options].text
                assert request.ids == wanted[prompt, options].ids
                right += 1
        return right

    wanted = {(p, o): alone("decoder", p, o) for n in range(4) for p, o in drawn(n)}
    try:
        with ThreadPoolExecutor(4) as clients:
            assert sum(clients.map(client, range(4))) > 8
    finally:
        closing.set()
        if driver.is_alive():
            driver.join()
    e.run()
    assert e.page_pool.num_available == e.page_pool.num_pages


def drawn(number: int) -> list[tuple[int, int]]:
    """What client `number` will ask for."""
    random = Random(number)
    out = []
    for _ in range(4):
        out.append((random.randrange(len(PROMPTS)), random.randrange(len(OPTIONS))))
        random.random()
    return out


# ── Controls: the schedules would show it ────────────────────────────────────────────────────────────────────────


def differs(kind: str, schedules: int = 40) -> bool:
    """Whether random schedules show a difference, or a lost page."""
    random = Random(0)
    for _ in range(schedules):
        plan = draw_plan(kind, random)
        try:
            _, made = carry_out(kind, plan)
        except AssertionError:
            return True
        for ask, request in made:
            if request.state == "done" and request.ids != alone(kind, ask.prompt, ask.options).ids:
                return True
    return False


def test_a_lost_page_would_show(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PagePool, "free_pages", lambda self, pages: self._free.extend(pages[1:]))
    assert differs("decoder")


def test_sharing_across_sources_would_show(monkeypatch: pytest.MonkeyPatch) -> None:
    find, make_known = PagePool.match_prefix, PagePool.insert_prefix
    monkeypatch.setattr(PagePool, "match_prefix", lambda self, _, tokens: find(self, 0, tokens))
    monkeypatch.setattr(PagePool, "insert_prefix", lambda self, _, *rest: make_known(self, 0, *rest))
    assert differs("seq2seq")


def test_sharing_by_a_page_alone_would_show(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same tokens after other tokens are other keys."""
    find, make_known = PagePool.match_prefix, PagePool.insert_prefix

    def found(self: PagePool, origin: object, tokens: list[int]) -> list[Any]:
        starts = range(0, len(tokens) - self.page_size + 1, self.page_size)
        each = [find(self, origin, tokens[first : first + self.page_size]) for first in starts]
        return [one for ones in each[: each.index([]) if [] in each else None] for one in ones]

    monkeypatch.setattr(PagePool, "match_prefix", found)
    monkeypatch.setattr(
        PagePool, "insert_prefix", lambda self, origin, above, *rest: make_known(self, origin, None, *rest)
    )
    assert differs("decoder")
