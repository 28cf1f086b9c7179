"""The aligner of a run that learns to speak: a small recogniser, which says how long each token of a text is spoken.

It is a CTC model, which is trained on the same sounds before the run, and cached like a tokenizer. CTC models predict
a token in few positions, and the blank in all others. So the blank is left out of the alignment: each position goes to
the token that is more likely there than elsewhere, in the order of the text.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn import functional as F

from qkv.blocks import HeadConfig, Inputs, StackConfig
from qkv.blocks.inputs import PayloadItem
from qkv.data import Problems
from qkv.data.problems import InvalidRecord
from qkv.data.sounds import SoundFormat
from qkv.errors import QkvError
from qkv.models import Config, Network, build
from qkv.models.runtime import eval_mode
from qkv.progress import OnStage
from qkv.sounds.config import FRAMES_PER_POSITION, GriffinLimConfig, LogMelConfig
from qkv.sounds.durations import align_tokens, find_silences
from qkv.tasks.prepare.sources import DataSource, digest
from qkv.text import Tokenizer
from qkv.train.recipe.schema import Recipe

VERSION = 1
FOLDER = "aligners"
MAX_FRAMES = 200_000  # of the training data: 33 minutes
BATCH_FRAMES = 4000
EPOCHS, MIN_STEPS = 12, 300
LR = 2e-3
CHUNK = 32  # utterances that are aligned together
MAX_POSITIONS = 2**15
PRIOR_WEIGHT = 0.5  # of the logarithm of how often a token is predicted, which is taken off its score


@dataclass
class SpeechAligner:
    """A trained recogniser, and the back end of the model that it is for."""

    config: GriffinLimConfig
    network: Network
    fingerprint: str

    def state_dict(self) -> dict[str, Tensor]:
        """The weights of the back end, which has none."""
        return {}

    def align(self, utterances: Sequence[tuple[np.ndarray, Sequence[int]]]) -> list[np.ndarray | None]:
        """The positions of the silence before each utterance, of its tokens, and of the silence after it.

        An utterance is its samples, and the tokens of its text. The result is None if it has too few positions.
        """
        found: list[np.ndarray | None] = []
        for start in range(0, len(utterances), CHUNK):
            chunk = utterances[start : start + CHUNK]
            items = [make_item(self.config.frames, samples) for samples, _ in chunk]
            with eval_mode(self.network):
                scores = [one.cpu().numpy() for one in compute_log_probs(self.network, items)]
            for item, one, (_, ids) in zip(items, scores, chunk, strict=True):
                found.append(align_utterance(item.values.numpy(), one, ids))
        return found


def align_utterance(frames: np.ndarray, log_probs: np.ndarray, ids: Sequence[int]) -> np.ndarray | None:
    """The positions of silence, tokens and silence, from the frames (n, F) and the log-probabilities (T, V)."""
    before, after = find_silences(frames, FRAMES_PER_POSITION)
    if len(log_probs) - before - after < len(ids):
        before = after = 0
    if len(log_probs) < len(ids):
        return None
    prior = np.log(np.exp(log_probs).mean(0) + 1e-4)
    spoken = (log_probs - PRIOR_WEIGHT * prior)[before : len(log_probs) - after]
    return np.concatenate([[before], align_tokens(spoken[:, list(ids)]), [after]])


def make_item(config: LogMelConfig, samples: np.ndarray) -> PayloadItem:
    """The input of the recogniser for 16-bit samples."""
    size = (config.count_frames(len(samples)), 1)
    frames = SoundFormat(config).decode(samples, size, 0)
    return PayloadItem(config.kind, torch.from_numpy(frames), size, config.length(size))


def compute_log_probs(network: Network, items: Sequence[PayloadItem]) -> list[Tensor]:
    """The log-probabilities of each sound, (T, V + 1)."""
    from qkv.tasks.run.payloads import join_parts

    inputs = Inputs.from_sequences([join_parts([item]) for item in items], always_document_ids=True)
    logits = network.head.project(network.hidden(inputs)[0]).log_softmax(-1)
    return [row[: item.length] for row, item in zip(logits, items, strict=True)]


def load_or_train_aligner(
    recipe: Recipe,
    sources: Sequence[DataSource],
    root: Path,
    tokenizer: Tokenizer,
    speakers: Sequence[str],
    progress: OnStage | None,
) -> tuple[SpeechAligner, str]:
    """The aligner of a run, and a note on it."""
    given = recipe.model.overrides.get("audio", {})
    shape = {name: given[name] for name in ("rate", "mels") if name in given}
    config = GriffinLimConfig(first_id=tokenizer.vocab_size, speakers=tuple(speakers) or ("speaker",), **shape)
    names = [VERSION, [one.identity(root) for one in sources], tokenizer.fingerprint, config.rate, config.mels]
    key = digest([*names, recipe.train.seed])
    network, path = build_recogniser(config, tokenizer, recipe.train.seed), root / FOLDER / f"{key}.safetensors"
    aligner = SpeechAligner(config, network, f"{key} {config.speakers}")
    if path.is_file():
        network.load_state_dict(load_file(path))
        return aligner, "the durations of tokens come from an aligner that an earlier run has trained on these sounds"
    utterances = read_utterances(sources, config, tokenizer)
    losses = train_recogniser(network, utterances, recipe.train.seed, progress)
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file(network.state_dict(), path)
    return aligner, (
        f"the durations of tokens come from a CTC aligner, trained in {len(losses)} steps on {len(utterances):,} "
        f"sounds; its loss fell from {losses[0]:.2f} to {np.mean(losses[-10:]):.2f} per token"
    )


def build_recogniser(config: GriffinLimConfig, tokenizer: Tokenizer, seed: int) -> Network:
    """A new recogniser: an encoder of 3 layers with a CTC head."""
    stack = StackConfig(
        vocab_size=0, width=128, layers=3, heads=4, ffn_width=256, position="rotary", max_positions=MAX_POSITIONS
    )
    head = HeadConfig(kind="ctc", outputs=tokenizer.target.vocab_size + 1, bias=True)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return build(Config(encoder=stack, head=head, front_ends=(config.frames,)))


def read_utterances(
    sources: Sequence[DataSource], config: GriffinLimConfig, tokenizer: Tokenizer
) -> list[tuple[PayloadItem, list[int]]]:
    """The first sounds of each source, with the tokens of their texts."""
    format, found = SoundFormat(config.frames), []
    for source in sources:
        frames = 0
        for record in source.records(Problems(max_invalid_fraction=1)):
            text = record.fields.get("text")
            try:
                samples, size = format.store(record.fields.get("audio"))
            except InvalidRecord:
                continue
            ids = list(tokenizer.encode(text, add_special_tokens=False)) if isinstance(text, str) else []
            if ids and config.frames.length(size) >= len(ids):
                found.append((make_item(config.frames, samples), ids))
                frames += size[0]
            if frames > MAX_FRAMES // len(sources):
                break
    if not found:
        raise QkvError("no sound of the training data has a text and can be decoded; qkv data lists the problems")
    return found


def train_recogniser(
    network: Network, utterances: Sequence[tuple[PayloadItem, list[int]]], seed: int, progress: OnStage | None
) -> list[float]:
    """Train the recogniser, and return the loss of each step. It depends only on the arguments."""
    batches = plan_batches([item.size[0] for item, _ in utterances])
    steps = max(MIN_STEPS, EPOCHS * len(batches))
    optimizer = torch.optim.AdamW(network.parameters(), lr=LR, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, LR, total_steps=steps, pct_start=0.2)
    order = torch.Generator().manual_seed(seed)
    losses: list[float] = []
    network.train()
    while len(losses) < steps:
        for number in torch.randperm(len(batches), generator=order).tolist()[: steps - len(losses)]:
            chosen = [utterances[i] for i in batches[number]]
            log_probs = compute_log_probs(network, [item for item, _ in chosen])
            lengths = torch.tensor([len(one) for one in log_probs])
            targets = torch.tensor([token for _, ids in chosen for token in ids])
            counts = torch.tensor([len(ids) for _, ids in chosen])
            padded = torch.nn.utils.rnn.pad_sequence(log_probs)
            blank = padded.shape[2] - 1
            loss = F.ctc_loss(padded, targets, lengths, counts, blank=blank, reduction="sum", zero_infinity=True)
            optimizer.zero_grad()
            (loss / counts.sum()).backward()
            torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            losses.append(loss.item() / int(counts.sum()))
            if progress is not None:
                progress("training the aligner", len(losses), steps)
    return losses


def plan_batches(lengths: Sequence[int]) -> list[list[int]]:
    """Sounds of similar lengths in batches of about `BATCH_FRAMES` frames."""
    batches: list[list[int]] = [[]]
    for number in sorted(range(len(lengths)), key=lambda i: lengths[i]):
        if batches[-1] and lengths[number] * (len(batches[-1]) + 1) > BATCH_FRAMES:
            batches.append([])
        batches[-1].append(number)
    return batches
