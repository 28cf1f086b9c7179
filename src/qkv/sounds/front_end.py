"""The front end for sounds: two convolutions over the frames of a spectrogram, as in Whisper, plus positions.

The sounds of a batch are laid out one after the other with zeros between them, so no sound is padded to the length of
another one, and none sees its neighbours.

k sounds, n frames of all sounds, m vectors of all sounds, L frames of the layout, F mel bands, C model width
"""

from math import log

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from qkv.blocks.inputs import Payload
from qkv.sounds.config import LogMelConfig


def whisper_positions(index: Tensor, width: int) -> Tensor:
    """Sines, then cosines, of wavelengths from 2π to 10000 · 2π: (m,) → (m, C), as in Whisper."""
    half = width // 2
    rates = torch.exp(
        torch.arange(half, device=index.device, dtype=torch.float32) * (-log(10_000.0) / max(1, half - 1))
    )
    angles = index[:, None].float() * rates
    return torch.cat([angles.sin(), angles.cos()], dim=1)


class Convolutions(nn.Module):
    """conv → GELU → conv → GELU → + positions. The convolutions read 3 frames, and together have `stride`."""

    def __init__(self, config: LogMelConfig, width: int) -> None:
        super().__init__()
        self.config, self.width = config, width
        self.first = nn.Conv1d(config.features, width, 3, stride=config.stride // 2, padding=1)
        self.second = nn.Conv1d(width, width, 3, stride=2, padding=1)

    def forward(self, payload: Payload) -> Tensor:
        """Payload values (n, F) → vectors (m, C)."""
        frames, stride = payload.sizes[:, 0], self.config.stride
        lengths = (frames + stride - 1) // stride  # (k,) vectors of each sound
        slots = lengths + 1  # and at least one frame of zeros after it
        x, is_frame = self.lay_out(payload.values, frames, stride * (slots.cumsum(0) - slots), stride * slots.sum())
        x = F.gelu(self.first(x.T[None])) * is_frame[:: self.config.stride // 2].to(x.dtype)  # (1, C, L or L/2)
        x = F.gelu(self.second(x))[0].T  # (L / stride, C)
        rows = torch.arange(len(x), device=x.device)
        number = torch.repeat_interleave(torch.arange(len(slots), device=x.device), slots)
        index = rows - (slots.cumsum(0) - slots)[number]  # within the sound
        is_vector = index < lengths[number]
        x, index = x[is_vector], index[is_vector]
        return x + whisper_positions(index, self.width).to(x.dtype) if self.config.positions == "sinusoidal" else x

    def lay_out(self, values: Tensor, frames: Tensor, starts: Tensor, length: Tensor) -> tuple[Tensor, Tensor]:
        """Frames (n, F) with zeros between the sounds, (L, F), and which of them are frames, (L,)."""
        shift = torch.repeat_interleave(starts - (frames.cumsum(0) - frames), frames)
        index = torch.arange(len(values), device=values.device) + shift
        x = values.new_zeros((int(length), self.config.features), dtype=self.first.weight.dtype)
        is_frame = torch.zeros(len(x), dtype=torch.bool, device=x.device)
        return x.index_copy(0, index, values.to(x.dtype)), is_frame.index_fill(0, index, True)
