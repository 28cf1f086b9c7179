"""Generation on a GPU: the functions of the GPU's backends (`qkv.decode.backend`).

The steps run in Triton kernels if these implement the network, otherwise as CUDA graphs of PyTorch's operators.
"""

from typing import Any

from qkv.blocks.kernels.gpu import has_triton
from qkv.decode.gpu import static_runner
from qkv.decode.gpu.beam import static_beam_search
from qkv.decode.gpu.graph_runner import GraphRunner
from qkv.decode.gpu.greedy import Kernels, decode_greedy
from qkv.decode.gpu.static_runner import StaticRunner
from qkv.decode.loop import GenerationCall, decode_loop, result_until_stop, search_results
from qkv.decode.result import FinishReason, GenerationResult, TokenLogprob
from qkv.decode.runner import ModelRunner
from qkv.decode.selection import NonFiniteLogits
from qkv.models import Network


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
    if compiled or not has_triton() or network.device.type != "cuda":
        return StaticRunner
    from qkv.decode.gpu import batched_runner

    return batched_runner.BatchedRunner if batched_runner.is_supported(network) else StaticRunner


def greedy_kernels(network: Network, *, fused: bool, compiled: bool) -> Kernels | None:
    """Return the kernels for greedy steps: for one sequence if `fused`, else for batches; None if neither applies."""
    if fused:
        return Kernels(StaticRunner, _fused_step().FusedGreedyStep)
    kind = runner_class(network, compiled=compiled)
    if kind is StaticRunner:
        return None
    from qkv.decode.gpu.batched_runner import BatchedGreedyStep

    return Kernels(kind, BatchedGreedyStep)


def supports_fused(network: Network) -> bool:
    """Whether the kernels for a batch size of 1 can decode with this network."""
    return static_runner.is_supported(network) and has_triton() and bool(_fused_step().is_supported(network))


def _fused_step() -> Any:
    """Import the module `fused_step` on first use, because it needs Triton, which may not be installed."""
    from qkv.decode.gpu import fused_step

    return fused_step
