"""What the decoding benchmarks share: a clock, prompts, and the same shapes in transformers with its own `generate`."""

import gc
import time
from collections.abc import Callable
from typing import Any

import torch

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
HALF = torch.bfloat16 if DEVICE == "cuda" else torch.float32


def synchronise() -> None:
    if DEVICE == "cuda":
        torch.cuda.synchronize()


def timed(work: Callable[[], Any], runs: int = 3, warm: int = 1) -> float:
    """The best of several runs after those that warm up, in seconds."""
    best = float("inf")
    for number in range(warm + runs):
        synchronise()
        begin = time.perf_counter()
        work()
        synchronise()
        if number >= warm:
            best = min(best, time.perf_counter() - begin)
    return best


def free() -> None:
    gc.collect()
    torch.compiler.reset()
    if DEVICE == "cuda":
        torch.cuda.empty_cache()


def prompts_of(batch: int, length: int) -> list[list[int]]:
    return torch.randint(3, 100, (batch, length), generator=torch.Generator().manual_seed(0)).tolist()


def peer(name: str, tiny: bool) -> Any:
    """The same shape in transformers."""
    import transformers

    transformers.utils.logging.set_verbosity_error()
    if name == "gpt2":
        small = {"n_embd": 64, "n_layer": 2, "n_head": 2} if tiny else {}
        model: Any = transformers.GPT2LMHeadModel(transformers.GPT2Config(**small))
    elif name == "llama-1.1b":
        sizes = (64, 128, 2, 4, 2) if tiny else (2048, 5632, 22, 32, 4)
        names = (
            "hidden_size",
            "intermediate_size",
            "num_hidden_layers",
            "num_attention_heads",
            "num_key_value_heads",
        )
        config = transformers.LlamaConfig(**dict(zip(names, sizes, strict=True)), max_position_embeddings=16_384)
        model = transformers.LlamaForCausalLM(config)
    else:
        width, layers, vocab = (64, 2, 500) if tiny else (512, 6, 32_000)
        sides = {f"{side}_{what}": value for side in ("encoder", "decoder") for what, value in _side(width, layers)}
        model = transformers.MarianMTModel(
            transformers.MarianConfig(
                vocab_size=vocab,
                d_model=width,
                pad_token_id=0,
                decoder_start_token_id=0,
                eos_token_id=1,
                scale_embedding=True,
                activation_function="relu",
                **sides,
            )
        )
    return model.to(DEVICE, HALF).eval()


def _side(width: int, layers: int) -> list[tuple[str, int]]:
    return [("layers", layers), ("ffn_dim", 4 * width), ("attention_heads", 8)]


def peer_seconds(model: Any, batch: int, length: int, new: int, beams: int = 1, runs: int = 1) -> float:
    ids = torch.tensor(prompts_of(batch, length), device=DEVICE)

    def work(count: int) -> None:
        model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=count,
            min_new_tokens=count,
            do_sample=False,
            num_beams=beams,
        )

    with torch.inference_mode():
        work(min(4, new))
        return timed(lambda: work(new), runs, warm=0)
