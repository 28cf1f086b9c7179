"""A thousand random schedules: what the engine writes is what each request alone would get, and no page is lost."""

from random import Random

import pytest
from engine_schedules import check, draw_plan

KINDS = {"decoder": 8, "decoder-learned": 5, "decoder-grouped-window": 3, "seq2seq": 4, "seq2seq-t5": 5}
SHARES = [(kind, share) for kind, shares in KINDS.items() for share in range(shares)]
EACH = 40  # schedules; × 25 shares = 1,000


@pytest.mark.parametrize(("kind", "share"), SHARES)
def test_random_schedules_write_what_each_request_alone_gets(kind: str, share: int) -> None:
    random = Random(f"{kind} {share}")
    seen: dict[str, int] = {}
    for _ in range(EACH):
        for name, count in check(kind, draw_plan(kind, random)).items():
            seen[name] = seen.get(name, 0) + (count > 0)
    # The schedules are worth something only if all of this happens in them.
    for name in ("cancelled", "set back", "reused", "evicted"):
        if name == "reused" and kind.startswith("seq2seq"):
            continue  # a target's beginning is short: shared pages are few
        assert seen[name] >= 2, f"only {seen[name]} of {EACH} schedules have {name}"
