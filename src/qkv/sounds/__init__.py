"""Sounds: sound files → samples → frames of a log-mel spectrogram → vectors, and back.

config        how a model reads sounds: sampling rate, frames, mel bands
files         sound files → samples; needs soundfile and soxr
mel           samples → frames of a log-mel spectrogram, as Whisper computes them
windows       a long sound in windows
augment       random changes of training sounds
formants      a synthesiser of digits, for examples
front_end     frames → vectors, by two convolutions
griffin_lim   frames → samples
"""
