"""A beam search whose steps are reported while it runs, so that the page can draw the tree as it grows."""

from collections.abc import Callable
from typing import Any

from qkv.api import Model
from qkv.decode import GenerationOptions, generate
from qkv.decode.result import SearchStep
from qkv.errors import UsageError
from qkv.inside import EditTap
from qkv.inside.look.search import describe_hypotheses, describe_step, find_finished, stop_reason
from qkv.models.runtime import eval_mode
from qkv.serve.studio.document import check_num_tokens
from qkv.serve.studio.requests import SearchRequest
from qkv.serve.studio.results import read_text
from qkv.serve.studio.switches import make_edits
from qkv.tasks.run.generate import limit_new_tokens


def run_search(model: Model, request: SearchRequest, report: Callable[[dict[str, Any]], None]) -> None:
    """Search, and call `report` with {"step", "hypotheses", "best"} after each step and {"stop_reason"} at the end.

    If `report` raises an exception, the search ends.
    """
    config = model.config
    if config.head.kind != "lm":
        raise UsageError(f"this model has a {config.head.kind} head and does not generate text; choose another model")
    edits = make_edits(config, request.off)
    ids, _ = read_text(model, request.text)
    check_num_tokens(len(ids), "text")
    num_prompt = 1 if config.family == "seq2seq" else len(ids)
    if config.stack.has_max_positions and num_prompt >= config.stack.max_positions:
        raise UsageError(f"the text fills all {config.stack.max_positions} positions of the model; shorten it")
    steps: list[SearchStep] = []

    def on_search_step(step: SearchStep) -> None:
        steps.append(step)
        found = describe_hypotheses(steps, find_finished(steps, options), model.tokenizer)
        report({"step": describe_step(steps, model.tokenizer), **found})

    options = GenerationOptions(
        beam=min(request.beam, config.stack.vocab_size),
        max_tokens=limit_new_tokens(config, request.max_tokens, num_prompt),
        tap=EditTap(edits) if edits else None,
        on_search_step=on_search_step,
    )
    with eval_mode(model.network):
        generate(model.network, [ids], options, model.tokenizer)
    report({"stop_reason": stop_reason(steps, find_finished(steps, options), options)})
