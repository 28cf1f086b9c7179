"""Which code runs a call of `generate`: one function chooses a backend, and each backend declares what it supports.

    speculative    a draft proposes tokens, the model verifies them      wherever there is a draft
    fused_greedy   greedy, one sequence, in a few Triton kernels         GPU, plain pre-norm decoders
    fused          the same, with sampling, filters and streaming
    gpu_greedy     greedy, captured steps without the host               GPU
    gpu_beam       beam search, captured steps without the host          GPU
    gpu            captured steps, the host sees every token             GPU
    cpu            the loops of the reference with a faster step         CPU
    reference      the network's own modules in `loop.py` and `beam.py`  anywhere

The first backend in this order that supports the call runs it. The reference supports every call.
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
from qkv.decode.gpu.greedy import decode_greedy
from qkv.decode.loop import GenerationCall, decode_loop, generate_with_modules, search_results, truncate_at_stop
from qkv.decode.options import GenerationOptions
from qkv.decode.result import GenerationResult, TokenLogprob
from qkv.decode.selection import NonFiniteLogits
from qkv.decode.speculative.draft import Draft
from qkv.decode.speculative.speculate import SpeculativeResult, generate_speculatively
from qkv.models import Decoder, Seq2Seq


@dataclass(frozen=True)
class Backend:
    """One way to run a call, and what it supports."""

    name: str
    generate: Callable[[GenerationCall], Sequence[GenerationResult]]
    options: frozenset[str]
    """Options that may be in effect (`GenerationOptions.in_effect`)."""
    device: str | None = None
    """The type of device that it runs on; None: any."""
    supports_network: Callable[[Decoder | Seq2Seq], bool] = lambda network: True
    """Whether it implements this network's config, in its present state."""
    streams: bool = True
    """Whether text can be emitted while it is generated."""
    max_batch_size: int | None = None
    requires_beam: bool = False
    """Whether it does beam search only."""

    def supports(
        self, network: Decoder | Seq2Seq, options: GenerationOptions, *, batch_size: int, streams: bool
    ) -> bool:
        """Whether this backend can run a call."""
        return (
            self.device in (None, next(network.parameters()).device.type)
            and (self.max_batch_size is None or batch_size <= self.max_batch_size)
            and (self.streams or not streams)
            and (options.beam > 1 or not self.requires_beam)
            and options.in_effect(network.config.eos_token_ids) <= self.options
            and self.supports_network(network)
        )


def generate_greedy(call: GenerationCall, *, fused: bool) -> list[GenerationResult]:
    """Greedy decoding on a GPU; the host reads the tokens when all of them are there."""
    runner, call = call.start()
    options, eos_token_ids = call.options, call.eos_token_ids
    fused_step = _fused_step().FusedGreedyStep if fused else None
    written = decode_greedy(runner, eos_token_ids, options.max_tokens, compiled=options.compile, fused_step=fused_step)
    if bool(written.logprobs.isnan().any()):
        raise NonFiniteLogits()
    results = []
    for row, (tokens, logprobs) in enumerate(zip(written.written.tolist(), written.logprobs.tolist(), strict=True)):
        num_tokens = tokens.index(-1) if -1 in tokens else len(tokens)
        taken = [TokenLogprob(*pair) for pair in zip(tokens[:num_tokens], logprobs, strict=False)]
        if options.stop:  # a stop string may end the text earlier
            results.append(truncate_at_stop(call, row, taken))
            continue
        ended = tokens[num_tokens - 1] in eos_token_ids
        ids = tokens[: num_tokens - ended]
        score = sum(logprobs[:num_tokens])
        results.append(GenerationResult(call.decode_text(ids), ids, score, "end" if ended else "length", taken))
    return results


def generate_with_graphs(call: GenerationCall, *, fused: bool) -> list[GenerationResult]:
    """Greedy decoding or sampling on a GPU; the host reads every token."""
    runner, call = call.start()
    fused_decoder = _fused_step().FusedDecoder if fused else None
    options = call.options
    graphs = GraphRunner(runner, options.max_tokens, compiled=options.compile, fused_decoder=fused_decoder)
    return decode_loop(graphs, call)


def generate_beams(call: GenerationCall) -> list[GenerationResult]:
    """Beam search on a GPU; the host reads the hypotheses when all of them are there."""
    runner, call = call.start()
    return search_results(call, static_beam_search(runner, call.options, call.eos_token_ids))


def generate_with_draft(call: GenerationCall) -> list[SpeculativeResult]:
    """Speculative decoding."""
    return generate_speculatively(call, cpu=cpu_step.is_supported(call.network))


def _supports_fused(network: Decoder | Seq2Seq) -> bool:
    return static_runner.is_supported(network) and has_triton() and bool(_fused_step().is_supported(network))


def _fused_step() -> Any:
    """The module, imported when it is needed: it imports Triton, which is not installed everywhere."""
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
CPU = Backend("cpu", partial(generate_with_modules, cpu=True), EVERY_OPTION, "cpu", cpu_step.is_supported)
REFERENCE = Backend("reference", generate_with_modules, EVERY_OPTION)

BACKENDS = (FUSED_GREEDY, FUSED, GPU_GREEDY, GPU_BEAM, GPU, CPU, REFERENCE)
ENGINE_BACKENDS = (GPU, CPU, REFERENCE)
"""Those whose steps the engine can run."""


def choose_backend(
    network: Decoder | Seq2Seq,
    options: GenerationOptions,
    *,
    batch_size: int = 1,
    streams: bool = False,
    draft: Draft | None = None,
    backends: Sequence[Backend] = BACKENDS,
) -> Backend:
    """The backend that runs a call: `speculative` where there is a draft, else the first that supports the call."""
    if draft is not None:
        return SPECULATIVE
    return next(one for one in backends if one.supports(network, options, batch_size=batch_size, streams=streams))
