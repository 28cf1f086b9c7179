"""Backends: the ways to run a `generate` call. `choose_backend` chooses one, and each declares what it supports.

    speculative    a draft proposes tokens, the model verifies them         any device, if a draft is given
    fused_greedy   greedy decoding of one sequence in Triton kernels        GPU, plain pre-norm decoders
    fused          the same kernels, with sampling, filters, streaming      GPU, plain pre-norm decoders
    gpu_greedy     greedy decoding in CUDA graphs, one copy at the end      GPU
    gpu_beam       beam search in CUDA graphs, one copy at the end          GPU
    gpu            CUDA graphs, and a copy of the tokens after each step    GPU
    cpu            `loop.py` and `beam.py` with a faster step               CPU
    reference      `loop.py` and `beam.py` with the network's modules       any device

A copy here is a copy of the generated tokens from the GPU to the CPU. A call with a draft runs on `speculative`. Every
other call runs on the first of the other backends, in this order, that supports it. The reference supports all of them.
Only the reference runs a call with a `tap`, because the other backends do not compute all of its sites.

The steps of the three `gpu` backends run in Triton kernels for batches (`gpu/batched_runner.py`) if these implement the
network and the call does not ask for the compiler. Otherwise they run in PyTorch's operators.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import partial
from typing import Any

from qkv.blocks.kernels.gpu import has_triton
from qkv.decode.cpu import step as cpu_step
from qkv.decode.gpu import static_runner
from qkv.decode.gpu.beam import static_beam_search
from qkv.decode.gpu.graph_runner import GraphRunner
from qkv.decode.gpu.greedy import Kernels, decode_greedy
from qkv.decode.gpu.static_runner import StaticRunner
from qkv.decode.loop import GenerationCall, decode_loop, generate_with_runner, result_until_stop, search_results
from qkv.decode.options import GenerationOptions
from qkv.decode.result import FinishReason, GenerationResult, TokenLogprob
from qkv.decode.runner import ModelRunner
from qkv.decode.selection import NonFiniteLogits
from qkv.decode.speculative.draft import Draft
from qkv.decode.speculative.speculate import SpeculativeResult, generate_speculatively
from qkv.models import Network


@dataclass(frozen=True)
class Backend:
    """One way to run a call, and what it supports."""

    name: str
    generate: Callable[[GenerationCall], Sequence[GenerationResult]]
    options: frozenset[str]
    """The options that the backend supports. A call may have no others in effect (`GenerationOptions.in_effect`)."""
    device: str | None = None
    """The device type that the backend runs on. None means any."""
    supports_network: Callable[[Network], bool] = lambda network: True
    """Returns whether the backend implements a network's config and its present state, such as its kernel."""
    streams: bool = True
    """Whether the backend calls `on_text`. Beam search does so once per text, when the search is done."""
    max_batch_size: int | None = None
    """The largest number of prompts in a call. None means any number."""
    requires_beam: bool = False
    """Whether the backend runs only beam search."""

    def supports(self, network: Network, options: GenerationOptions, *, batch_size: int, streams: bool) -> bool:
        """Return whether this backend can run a call."""
        return (
            self.device in (None, next(network.parameters()).device.type)
            and (self.max_batch_size is None or batch_size <= self.max_batch_size)
            and (self.streams or not streams)
            and (options.beam > 1 or not self.requires_beam)
            and options.in_effect(network.config.eos_token_ids) <= self.options
            and self.supports_network(network)
        )


def generate_greedy(call: GenerationCall, *, fused: bool) -> list[GenerationResult]:
    """Decode greedily on a GPU. The tokens are copied to the CPU once, after the last step."""
    runner, call = prepare_batch_on_gpu(call)
    options, eos_token_ids = call.options, call.eos_token_ids
    kernels = greedy_kernels(call.network, fused=fused, compiled=options.compile)
    greedy = decode_greedy(runner, eos_token_ids, options.max_tokens, compiled=options.compile, kernels=kernels)
    if bool(greedy.logprobs.isnan().any()):
        raise NonFiniteLogits()
    results = []
    for row, (tokens, logprobs) in enumerate(zip(greedy.written.tolist(), greedy.logprobs.tolist(), strict=True)):
        num_tokens = tokens.index(-1) if -1 in tokens else len(tokens)
        token_logprobs = [TokenLogprob(*pair) for pair in zip(tokens[:num_tokens], logprobs, strict=False)]
        if options.stop:  # A stop string may end the text before the last token.
            results.append(result_until_stop(call, row, token_logprobs))
            continue
        ended = tokens[num_tokens - 1] in eos_token_ids
        ids = tokens[: num_tokens - ended]
        finish_reason: FinishReason = "end" if ended else "length"
        score = sum(logprobs[:num_tokens])
        results.append(GenerationResult(call.decode_text(ids), ids, score, finish_reason, token_logprobs))
    return results


def generate_with_graphs(call: GenerationCall, *, fused: bool) -> list[GenerationResult]:
    """Decode greedily or by sampling on a GPU. The tokens are copied to the CPU after every step."""
    runner, call = prepare_batch_on_gpu(call)
    options = call.options
    graphs = GraphRunner(
        runner,
        options.max_tokens,
        compiled=options.compile,
        runner_class=StaticRunner if fused else runner_class(call.network, compiled=options.compile),
        fused_decoder=_fused_step().FusedDecoder if fused else None,
    )
    return decode_loop(graphs, call)


def generate_beams(call: GenerationCall) -> list[GenerationResult]:
    """Run beam search on a GPU. The hypotheses are copied to the CPU once, after the last step."""
    runner, call = prepare_batch_on_gpu(call)
    kind = runner_class(call.network, compiled=call.options.compile)
    return search_results(call, static_beam_search(runner, call.options, call.eos_token_ids, runner_class=kind))


def generate_with_draft(call: GenerationCall) -> list[SpeculativeResult]:
    """Run speculative decoding."""
    return generate_speculatively(call, cpu=cpu_step.is_supported(call.network))


def prepare_batch_on_gpu(call: GenerationCall) -> tuple[ModelRunner, GenerationCall]:
    """Prepare the batch of a call. The prompts are read in Triton kernels if these implement the network."""
    runner, call = call.prepare_batch()
    if has_triton() and runner.tokens.is_cuda:
        from qkv.decode.gpu import batched_prefill

        if batched_prefill.is_supported(call.network):
            runner.next_logits = batched_prefill.next_logits
    return runner, call


def runner_class(network: Network, *, compiled: bool = False) -> type[StaticRunner]:
    """Return `BatchedRunner` if its kernels can run the steps, else `StaticRunner`."""
    if compiled or not has_triton() or next(network.parameters()).device.type != "cuda":
        return StaticRunner
    from qkv.decode.gpu import batched_runner

    return batched_runner.BatchedRunner if batched_runner.is_supported(network) else StaticRunner


def greedy_kernels(network: Network, *, fused: bool, compiled: bool) -> Kernels | None:
    """Return the kernels for greedy steps: those for one sequence if `fused`, else those for batches, or None."""
    if fused:
        return Kernels(StaticRunner, _fused_step().FusedGreedyStep)
    kind = runner_class(network, compiled=compiled)
    if kind is StaticRunner:
        return None
    from qkv.decode.gpu.batched_runner import BatchedGreedyStep

    return Kernels(kind, BatchedGreedyStep)


def _supports_fused(network: Network) -> bool:
    return static_runner.is_supported(network) and has_triton() and bool(_fused_step().is_supported(network))


def _fused_step() -> Any:
    """Import the module `fused_step` on first use, because it needs Triton, which may not be installed."""
    from qkv.decode.gpu import fused_step

    return fused_step


EVERY_OPTION = frozenset(field.name for field in fields(GenerationOptions))
GREEDY_OPTIONS = frozenset({"max_tokens", "prefix", "stop", "compile"})
BEAM_OPTIONS = GREEDY_OPTIONS | {
    *("min_tokens", "suppress_tokens", "beam", "length_penalty", "length_penalty_kind", "num_return_sequences")
}
LOOP_OPTIONS = GREEDY_OPTIONS | {
    *("min_tokens", "temperature", "top_k", "top_p", "min_p", "seed", "repetition_penalty", "no_repeat_ngram_size"),
    *("suppress_tokens", "logits_processors", "constraint", "logprobs"),
}

SPECULATIVE = Backend("speculative", generate_with_draft, LOOP_OPTIONS)
FUSED_GREEDY = Backend(
    "fused_greedy", partial(generate_greedy, fused=True), GREEDY_OPTIONS, "cuda", _supports_fused, False, 1
)
FUSED = Backend("fused", partial(generate_with_graphs, fused=True), LOOP_OPTIONS, "cuda", _supports_fused, True, 1)
GPU_GREEDY = Backend(
    "gpu_greedy", partial(generate_greedy, fused=False), GREEDY_OPTIONS, "cuda", static_runner.is_supported, False
)
GPU_BEAM = Backend("gpu_beam", generate_beams, BEAM_OPTIONS, "cuda", static_runner.is_supported, requires_beam=True)
GPU = Backend("gpu", partial(generate_with_graphs, fused=False), LOOP_OPTIONS, "cuda", static_runner.is_supported)
CPU = Backend("cpu", partial(generate_with_runner, cpu=True), EVERY_OPTION - {"tap"}, "cpu", cpu_step.is_supported)
REFERENCE = Backend("reference", generate_with_runner, EVERY_OPTION)

BACKENDS = (FUSED_GREEDY, FUSED, GPU_GREEDY, GPU_BEAM, GPU, CPU, REFERENCE)
ENGINE_BACKENDS = (GPU, CPU, REFERENCE)
"""The backends that `Engine` chooses from."""


def choose_backend(
    network: Network,
    options: GenerationOptions,
    *,
    batch_size: int = 1,
    streams: bool = False,
    draft: Draft | None = None,
    backends: Sequence[Backend] = BACKENDS,
) -> Backend:
    """Return `SPECULATIVE` if there is a draft, else the first of `backends` that supports the call."""
    if draft is not None:
        return SPECULATIVE
    return next(b for b in backends if b.supports(network, options, batch_size=batch_size, streams=streams))
