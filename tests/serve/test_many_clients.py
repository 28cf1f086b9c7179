"""Many clients at once get the answers that `m.generate` gives to each alone. `many_clients.py` runs 64 of them."""

import asyncio

from many_clients import make_jobs, run_clients
from serving import served, wait_until
from task_models import decoder


def test_every_answer_is_that_of_generate() -> None:
    model = decoder(max_positions=256)
    model.network.eval()
    jobs = make_jobs(model, 16, max_tokens=40)
    with served({"model": model}, max_sequences=4, cache_mib=1) as (url, app):
        thread = app.state.server.pool.find(None).engine
        counts = asyncio.run(run_clients(url, jobs, 12, num_requests=4))
        assert sum(counts.values()) == 48
        assert counts["whole"]
        assert counts["stream"]
        assert counts["cancelled"]
        wait_until(lambda: thread.engine.page_pool.num_available == thread.engine.page_pool.num_pages)
        wait_until(lambda: thread.num_unfinished == 0)
        assert thread.engine.stats.reused_tokens > 0
