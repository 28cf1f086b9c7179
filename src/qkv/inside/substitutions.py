"""Single substitutions of a protein: how likely a masked language model finds each residue at each position.

Each residue is masked in turn, and the model predicts it from the residues around it ("masked marginals", Meier et al.
2021). The score of a substitution is the log-probability of the new residue minus the log-probability of the residue
that is there, so it is above 0 if the model finds the new one more probable. The pseudo-perplexity is the exponential
of the mean loss of the residues that are there.

T residues, V tokens
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from qkv.errors import UsageError
from qkv.models import Network
from qkv.models.runtime import eval_mode
from qkv.text import Tokenizer
from qkv.text.residues import AMINO_ACIDS

MASKS_PER_BATCH = 32


@dataclass(frozen=True)
class Substitutions:
    """The scores of all single substitutions of a protein.

    `scores[t, a]` is the score of the amino acid a, in the order of `amino_acids`, at the t-th residue.
    """

    sequence: str
    positions: tuple[int, ...]  # of the residues among the tokens
    scores: Tensor  # (T, 20)
    pseudo_perplexity: float
    amino_acids: str = AMINO_ACIDS

    def of(self, mutation: str) -> float:
        """The score of a mutation such as "K42R": the residue, its number from 1, and the new one."""
        old, number, new = mutation[:1], mutation[1:-1], mutation[-1:]
        is_known = new in self.amino_acids and number.isdecimal() and 1 <= int(number) <= len(self.sequence)
        if not is_known or self.sequence[int(number) - 1] != old:
            raise UsageError(
                f"{mutation!r} is not a mutation of this protein; write one like K42R: the residue, "
                "its number counted from 1, and the new residue"
            )
        return float(self.scores[int(number) - 1, self.amino_acids.index(new)])


@torch.no_grad()
def score_substitutions(network: Network, tokenizer: Tokenizer, text: str) -> Substitutions:
    """Score all single substitutions of a protein with a masked language model of residues."""
    mask = tokenizer.special_tokens.mask
    if not tokenizer.reads_residues or mask is None or network.config.head.kind != "mlm":
        raise UsageError("scores of substitutions need a masked language model of proteins, such as ESM-2")
    ids = torch.tensor(tokenizer.encode(text), device=network.device)
    letters = [tokenizer.id_to_token(int(i)) or "" for i in ids]
    positions = [t for t, letter in enumerate(letters) if letter in AMINO_ACIDS]
    if not positions:
        raise UsageError(f"{text[:40]!r} has no residue of the 20 amino acids; give a protein")
    columns = torch.tensor([tokenizer.backend.token_to_id(letter) for letter in AMINO_ACIDS], device=network.device)
    found = []
    with eval_mode(network):
        for start in range(0, len(positions), MASKS_PER_BATCH):
            chunk = torch.tensor(positions[start : start + MASKS_PER_BATCH], device=network.device)
            rows = torch.arange(len(chunk), device=network.device)
            batch = ids.repeat(len(chunk), 1)
            batch[rows, chunk] = mask
            logits = network(batch)[rows, chunk].float()
            found.append(logits.log_softmax(-1)[:, columns].cpu())
    log_probs = torch.cat(found)  # (T, 20)
    sequence = "".join(letters[t] for t in positions)
    own = log_probs[range(len(sequence)), [AMINO_ACIDS.index(letter) for letter in sequence]]
    return Substitutions(sequence, tuple(positions), log_probs - own[:, None], math.exp(-float(own.mean())))
