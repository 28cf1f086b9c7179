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
from typing import TYPE_CHECKING

from qkv.decode.cpu import step as cpu_step
from qkv.decode.loop import GenerationCall, generate_with_runner
from qkv.decode.options import GenerationOptions
from qkv.decode.result import GenerationResult
from qkv.lazy import lazy_function
from qkv.models import Network
from qkv.tables import OpenTable

if TYPE_CHECKING:
    from qkv.decode.speculative.draft import Draft


@dataclass(frozen=True)
class Backend:
    """One way to run a call, and the calls that it supports."""

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
            self.device in (None, network.device.type)
            and (self.max_batch_size is None or batch_size <= self.max_batch_size)
            and (self.streams or not streams)
            and (options.beam > 1 or not self.requires_beam)
            and options.in_effect(network.config.eos_token_ids) <= self.options
            and self.supports_network(network)
        )


EVERY_OPTION = frozenset(field.name for field in fields(GenerationOptions))
GREEDY_OPTIONS = frozenset({"max_tokens", "prefix", "stop", "compile"})
BEAM_OPTIONS = GREEDY_OPTIONS | {
    *("min_tokens", "suppress_tokens", "beam", "length_penalty", "length_penalty_kind", "num_return_sequences")
}
LOOP_OPTIONS = GREEDY_OPTIONS | {
    *("min_tokens", "temperature", "top_k", "top_p", "min_p", "seed", "repetition_penalty", "no_repeat_ngram_size"),
    *("suppress_tokens", "logits_processors", "constraint", "logprobs"),
}

SPECULATIVE = Backend(
    "speculative", lazy_function("qkv.decode.speculative.speculate:generate_speculatively"), LOOP_OPTIONS
)
# The functions of the GPU's backends are imported when a network on a GPU needs them.
SUPPORTS_GPU = lazy_function("qkv.decode.gpu.static_runner:is_supported")
SUPPORTS_FUSED = lazy_function("qkv.decode.gpu.generate:supports_fused")
GREEDY = lazy_function("qkv.decode.gpu.generate:generate_greedy")
GRAPHS = lazy_function("qkv.decode.gpu.generate:generate_with_graphs")
BEAMS = lazy_function("qkv.decode.gpu.generate:generate_beams")
FUSED_GREEDY = Backend("fused_greedy", partial(GREEDY, fused=True), GREEDY_OPTIONS, "cuda", SUPPORTS_FUSED, False, 1)
FUSED = Backend("fused", partial(GRAPHS, fused=True), LOOP_OPTIONS, "cuda", SUPPORTS_FUSED, True, 1)
GPU_GREEDY = Backend("gpu_greedy", partial(GREEDY, fused=False), GREEDY_OPTIONS, "cuda", SUPPORTS_GPU, False)
GPU_BEAM = Backend("gpu_beam", BEAMS, BEAM_OPTIONS, "cuda", SUPPORTS_GPU, requires_beam=True)
GPU = Backend("gpu", partial(GRAPHS, fused=False), LOOP_OPTIONS, "cuda", SUPPORTS_GPU)
CPU = Backend("cpu", partial(generate_with_runner, cpu=True), EVERY_OPTION - {"tap"}, "cpu", cpu_step.is_supported)
REFERENCE = Backend("reference", generate_with_runner, EVERY_OPTION)

BACKENDS = (FUSED_GREEDY, FUSED, GPU_GREEDY, GPU_BEAM, GPU, CPU, REFERENCE)
BACKEND_TABLE = OpenTable[Backend]("decoding backend", {backend.name: backend for backend in (SPECULATIVE, *BACKENDS)})
ENGINE_BACKENDS = (GPU, CPU, REFERENCE)
"""The backends that `Engine` chooses from."""


def register_backend(name: str, backend: Backend, *, replace: bool = False) -> None:
    """Add a backend of your own, which runs every call that it supports."""
    BACKEND_TABLE.register(name, backend, replace=replace)


def choose_backend(
    network: Network,
    options: GenerationOptions,
    *,
    batch_size: int = 1,
    streams: bool = False,
    draft: "Draft | None" = None,
    backends: Sequence[Backend] | None = None,
) -> Backend:
    """Return `SPECULATIVE` if there is a draft, else the first of `backends` that supports the call.

    The default is the registered backends, followed by `BACKENDS`.
    """
    if draft is not None:
        return SPECULATIVE
    if backends is None:
        own = [backend for backend in BACKEND_TABLE.values() if backend not in (SPECULATIVE, *BACKENDS)]
        backends = (*own, *BACKENDS)
    return next(b for b in backends if b.supports(network, options, batch_size=batch_size, streams=streams))
