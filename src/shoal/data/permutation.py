"""A shuffled order that is computed, not stored: position in the order to index of the sample.

A set of up to ``SMALL`` samples is ordered by a keyed hash of its indices. A larger one goes through a Feistel
network [1] over the smallest power of two that holds it, and through it again while the result lies outside of the
set ("cycle walking" [2]); that is a bijection whatever the round function is. Both are the same on every machine and
at every world size, and need memory for the positions that are asked for, never for the set.

[1] M. Luby, C. Rackoff: How to construct pseudorandom permutations from pseudorandom functions (1988).
[2] J. Black, P. Rogaway: Ciphers with arbitrary finite domains (2002).
"""

from __future__ import annotations

from typing import overload

import numpy as np
from numpy.typing import NDArray

from shoal.errors import UsageError

__all__ = ["MAX_SAMPLES", "mix", "permute", "scramble"]

MAX_SAMPLES = 2**62
SMALL = 4096  # Below, orders that a narrow Feistel network cannot reach would show (it makes only even ones).
NUM_ROUNDS = 8
_MASK = 2**64 - 1
_MULTIPLIERS = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)

Words = NDArray[np.uint64]


def mix(*values: int) -> int:
    """One 64-bit number from any integers: their splitmix64 hash (Steele, Lea, Flood, 2014), the order counts."""
    state = 0
    for value in values:
        state = (state ^ (value & _MASK)) + 0x9E3779B97F4A7C15 & _MASK
        state = (state ^ (state >> 30)) * _MULTIPLIERS[0] & _MASK
        state = (state ^ (state >> 27)) * _MULTIPLIERS[1] & _MASK
        state ^= state >> 31
    return state


@overload
def permute(positions: int, *, num_samples: int, seed: int, epoch: int) -> int: ...
@overload
def permute(positions: NDArray[np.int64], *, num_samples: int, seed: int, epoch: int) -> NDArray[np.int64]: ...


def permute(positions: int | NDArray[np.int64], *, num_samples: int, seed: int, epoch: int) -> int | NDArray[np.int64]:
    """The indices of the samples at ``positions`` of the order that (seed, epoch) gives.

    Args:
        positions: one position, or an array of them of any shape, each in ``range(num_samples)``.
        num_samples: size of the set, at most 2**62.
        seed: any integer; its lowest 64 bits count.
        epoch: any integer; every epoch has an order of its own.

    Returns:
        An index for a position, an int64 array of the same shape for an array.

    Raises:
        UsageError: a position lies outside of the set, or the set is too large.
    """
    if not 0 <= num_samples <= MAX_SAMPLES:
        raise UsageError(f"num_samples={num_samples} cannot be permuted; give a size from 0 to 2**62")
    wanted = np.asarray(positions, dtype=np.int64)
    if wanted.size and (wanted.min() < 0 or wanted.max() >= num_samples):
        raise UsageError(
            f"positions from {wanted.min()} to {wanted.max()} were asked of an order of {num_samples} samples; "
            f"give positions from 0 to {num_samples - 1}"
        )
    if num_samples <= SMALL:
        found = _small_order(num_samples, seed, epoch)[wanted]
    else:
        found = _walk(wanted.ravel().astype(np.uint64), num_samples, seed, epoch).astype(np.int64).reshape(wanted.shape)
    return int(found) if isinstance(positions, int) else found


def _small_order(num_samples: int, seed: int, epoch: int) -> NDArray[np.int64]:
    keys = scramble(np.arange(num_samples, dtype=np.uint64), mix(seed, epoch))
    return np.argsort(scramble(keys, mix(seed, epoch, 1)), kind="stable")


def _walk(words: Words, num_samples: int, seed: int, epoch: int) -> Words:
    num_bits = (num_samples - 1).bit_length()
    keys = [mix(seed, epoch, num_samples, round_number) for round_number in range(NUM_ROUNDS)]
    words = _encrypt(words, num_bits, keys)
    outside = np.flatnonzero(words >= num_samples)
    while outside.size:
        again = _encrypt(words[outside], num_bits, keys)
        words[outside] = again
        outside = outside[again >= num_samples]
    return words


def _encrypt(words: Words, num_bits: int, keys: list[int]) -> Words:
    """An alternating Feistel network on words of ``num_bits`` bits; the two parts may differ by one bit."""
    num_low = num_bits // 2
    low, high = words & np.uint64(2**num_low - 1), words >> np.uint64(num_low)
    shift_low, shift_high = np.uint64(64 - num_low), np.uint64(64 - (num_bits - num_low))
    for round_number, key in enumerate(keys):
        if round_number % 2:
            low ^= scramble(high, key) >> shift_low
        else:
            high ^= scramble(low, key) >> shift_high
    return (high << np.uint64(num_low)) | low


def scramble(words: Words, key: int) -> Words:
    """Keyed 64-bit hash whose high bits are the best mixed; products wrap, as meant."""
    scrambled = words ^ np.uint64(key)
    scrambled *= np.uint64(_MULTIPLIERS[0])
    scrambled ^= scrambled >> np.uint64(32)
    scrambled *= np.uint64(_MULTIPLIERS[1])
    scrambled ^= scrambled >> np.uint64(29)
    scrambled *= np.uint64(_MULTIPLIERS[0])
    return scrambled
