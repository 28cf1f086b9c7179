"""Training throughput of a sparse autoencoder, beside SAELens: the same data, sizes, batch and steps, in one run.

    python bench/autoencoder.py --width 256 --features 4096 --k 32 --seconds 20 --rounds 3

Both train a TopK autoencoder on the same activations in memory, on the same device with the same number of threads, and
each starts with a few steps that are not timed. They take turns, and the result is the median of the rounds.
SAELens (pip install sae-lens) is left out if it is not installed.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from qkv.inside.autoencoder import AutoencoderConfig, AutoencoderOptions, SparseAutoencoder, train_autoencoder

TRUE_FEATURES = 512


def make_activations(width: int, num_tokens: int, device: str) -> Tensor:
    """Sparse sums of random directions: activations with features that an autoencoder can find."""
    generator = torch.Generator().manual_seed(0)
    directions = F.normalize(torch.randn(TRUE_FEATURES, width, generator=generator), dim=1)
    active = torch.rand(num_tokens, TRUE_FEATURES, generator=generator) < 16 / TRUE_FEATURES
    features = torch.rand(num_tokens, TRUE_FEATURES, generator=generator) * active
    return (features @ directions).to(device)


def endless_batches(x: Tensor, batch_tokens: int) -> Iterator[Tensor]:
    """Batches of consecutive rows, again and again."""
    while True:
        yield from x.split(batch_tokens)


def train_ours(x: Tensor, arguments: argparse.Namespace, steps: int) -> SparseAutoencoder:
    """Train with qkv."""
    config = AutoencoderConfig(width=arguments.width, features=arguments.features, k=arguments.k)
    return train_autoencoder(
        endless_batches(x, arguments.batch_tokens), config, AutoencoderOptions(steps=steps, lr=arguments.lr)
    )


def train_sae_lens(x: Tensor, arguments: argparse.Namespace, steps: int) -> Any:
    """Train with SAELens."""
    from sae_lens import SAETrainer, TopKTrainingSAE, TopKTrainingSAEConfig
    from sae_lens.config import SAETrainerConfig

    sae = TopKTrainingSAE(
        TopKTrainingSAEConfig(
            d_in=arguments.width,
            d_sae=arguments.features,
            k=arguments.k,
            device=arguments.device,
            use_sparse_activations=arguments.sparse,
        )
    )
    config = SAETrainerConfig(
        total_training_samples=steps * arguments.batch_tokens,
        train_batch_size_samples=arguments.batch_tokens,
        lr=arguments.lr,
        lr_end=arguments.lr,
        device=arguments.device,
    )
    return SAETrainer(config, sae, endless_batches(x, arguments.batch_tokens)).fit()


def measure(train: Callable[[int], Any], arguments: argparse.Namespace) -> tuple[float, Any]:
    """Return the tokens per second of training, and what was trained."""
    train(3)
    began = time.perf_counter()
    train(arguments.probe_steps)
    synchronise(arguments.device)
    per_step = (time.perf_counter() - began) / arguments.probe_steps
    steps = max(5, int(arguments.seconds / per_step))
    began = time.perf_counter()
    trained = train(steps)
    synchronise(arguments.device)
    return steps * arguments.batch_tokens / (time.perf_counter() - began), trained


def synchronise(device: str) -> None:
    """Wait for the device."""
    if device == "cuda":
        torch.cuda.synchronize()


def explained_variance(x: Tensor, reconstructed: Tensor) -> float:
    """1 − the squared error / the variance."""
    return 1 - float((x - reconstructed).square().sum() / (x - x.mean(0)).square().sum())


def main() -> None:
    """Measure, and print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("width", 256), ("features", 4096), ("k", 32), ("batch-tokens", 1024), ("probe-steps", 5)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--seconds", type=float, default=20.0, help="of each library, in each round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--sparse", action="store_true", help="SAELens with use_sparse_activations")
    arguments = parser.parse_args()
    x = make_activations(arguments.width, 16 * arguments.batch_tokens, arguments.device)
    result: dict[str, Any] = {**vars(arguments), "threads": torch.get_num_threads(), "torch": torch.__version__}
    peers = {"qkv": train_ours}
    try:
        import sae_lens

        peers["sae_lens"] = train_sae_lens
        result["sae_lens_version"] = sae_lens.__version__
    except ImportError:
        result["sae_lens_version"] = "not installed"
    speeds: dict[str, list[float]] = {name: [] for name in peers}
    for _ in range(arguments.rounds):
        for name, train in peers.items():
            speed, trained = measure(lambda steps, train=train: train(x, arguments, steps), arguments)  # type: ignore[misc]
            speeds[name].append(speed)
            with torch.no_grad():
                reconstructed = trained(x[: arguments.batch_tokens])
            result[name] = {
                "tokens_per_second": round(statistics.median(speeds[name])),
                "rounds": [round(one) for one in speeds[name]],
                "explained_variance": round(explained_variance(x[: arguments.batch_tokens], reconstructed), 4),
            }
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
