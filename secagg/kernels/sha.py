"""SHA-256 with the processor's SHA instructions, for many short messages and for two long ones (FIPS 180-4, 6.2).

The registers hold four of the state's eight words each, (F, E, B, A) and (H, G, D, C), and one instruction does two
rounds. An instruction waits for the one before it, so two messages are hashed in little more time than one. No branch
and no index depends on the data: secrets may be hashed here.
"""

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types

from secagg.kernels.jit import cgutils, intrinsic, kernel

FEATURES = frozenset({"sha", "sse4.1", "ssse3"})

_LONG, _WORD = ir.IntType(64), ir.IntType(32)
_FOUR = ir.VectorType(_WORD, 4)
_SIXTEEN = ir.VectorType(ir.IntType(8), 16)


# The first 32 fractional bits of cube and square roots of primes (4.2.2, 5.3.3). A double has 17 bits to spare.
_PRIMES = [n for n in range(2, 312) if all(n % k for k in range(2, n))]
_CONSTANTS = [int(prime ** (1 / 3) * 2**32) % 2**32 for prime in _PRIMES]
_A, _B, _C, _D, _E, _F, _G, _H = (int(prime**0.5 * 2**32) % 2**32 for prime in _PRIMES[:8])
_START = np.array([_F, _E, _B, _A, _H, _G, _D, _C], np.uint32)
_ORDER = np.array([3, 2, 7, 6, 1, 0, 5, 4])  # positions of A, B, ... H


def _emit(builder: Any, streams: list[tuple[Any, Any]]) -> None:
    """Make code that adds a block of 64 bytes to each state. Streams are interleaved to hide latency."""

    def instruction(name: str, operands: int) -> Any:
        kind = ir.FunctionType(_FOUR, [_FOUR] * operands)
        return cgutils.get_or_insert_function(builder.module, kind, f"llvm.x86.sha256{name}")

    def place(pointer: Any, kind: Any, index: int) -> Any:
        return builder.gep(builder.bitcast(pointer, kind.as_pointer()), [ir.Constant(_LONG, index)])

    def load(pointer: Any, kind: Any, index: int) -> Any:
        value = builder.load(place(pointer, kind, index))
        value.align = 1
        return value

    def pick(low: Any, high: Any, order: list[int]) -> Any:
        return builder.shuffle_vector(low, high, ir.Constant(_FOUR, order))

    rounds, first, second = instruction("rnds2", 3), instruction("msg1", 2), instruction("msg2", 2)
    reverse = ir.Constant(ir.VectorType(_WORD, 16), [i ^ 3 for i in range(16)])  # words are big-endian
    words: list[list[Any]] = []
    for _, block in streams:
        parts = [load(block, _SIXTEEN, i) for i in range(4)]
        words.append([builder.bitcast(builder.shuffle_vector(part, part, reverse), _FOUR) for part in parts])
    before = [[load(registers, _FOUR, i) for i in range(2)] for registers, _ in streams]
    states = [list(state) for state in before]
    for i in range(16):  # four rounds each
        for text, state in zip(words, states, strict=True):
            if i >= 4:
                part = builder.call(first, [text[i - 4], text[i - 3]])
                part = builder.add(part, pick(text[i - 2], text[i - 1], [1, 2, 3, 4]))
                text.append(builder.call(second, [part, text[i - 1]]))
            sums = builder.add(text[i], ir.Constant(_FOUR, _CONSTANTS[4 * i : 4 * i + 4]))
            state[1] = builder.call(rounds, [state[1], state[0], sums])
            state[0] = builder.call(rounds, [state[0], state[1], pick(sums, sums, [2, 3, 0, 1])])
    for (registers, _), state, old in zip(streams, states, before, strict=True):
        for i in range(2):
            builder.store(builder.add(state[i], old[i]), place(registers, _FOUR, i)).align = 1


def _data(context: Any, builder: Any, signature: Any, args: Any, index: int) -> Any:
    return context.make_array(signature.args[index])(context, builder, args[index]).data


@intrinsic
def _compress(typing: Any, state: Any, text: Any, at: Any) -> Any:
    """Add the 64 bytes text[at:] to the state."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        block = builder.gep(_data(context, builder, signature, args, 1), [args[2]])
        _emit(builder, [(_data(context, builder, signature, args, 0), block)])
        return context.get_dummy_value()

    return types.void(state, text, types.int64), generate


@intrinsic
def _compress_two(typing: Any, states: Any, first: Any, second: Any, at: Any) -> Any:
    """Add the 64 bytes first[at:] to states[0], and second[at:] to states[1]."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        registers, one, other = (_data(context, builder, signature, args, i) for i in range(3))
        behind = builder.gep(registers, [ir.Constant(_LONG, 8)])
        _emit(builder, [(registers, builder.gep(one, [args[3]])), (behind, builder.gep(other, [args[3]]))])
        return context.get_dummy_value()

    return types.void(states, first, second, types.int64), generate


@kernel
def _write(state: Any, digest: Any) -> None:
    """The digest that the state is."""
    for k in range(8):
        word = state[_ORDER[k]]
        for j in range(4):
            digest[4 * k + j] = (word >> np.uint32(24 - 8 * j)) & np.uint32(255)


@kernel
def hash_rows(label: Any, rows: Any, digests: Any) -> None:
    """digests[k] = SHA-256(label, then rows[k]), all of them bytes."""
    start = label.shape[0]
    length = start + rows.shape[1]
    blocks = (length + 9 + 63) // 64
    text = np.zeros(64 * blocks, np.uint8)
    text[:start] = label
    text[length] = 0x80
    for k in range(8):
        text[64 * blocks - 1 - k] = ((8 * length) >> (8 * k)) & 255
    state = np.empty(8, np.uint32)
    for row in range(rows.shape[0]):
        text[start:length] = rows[row]
        state[:] = _START
        for block in range(blocks):
            _compress(state, text, 64 * block)
        _write(state, digests[row])


@kernel
def hash_two(first: Any, second: Any, digests: Any) -> None:
    """digests = SHA-256(first), SHA-256(second), which have the same number of bytes."""
    length = first.shape[0]
    whole = length // 64
    states = np.empty((2, 8), np.uint32)
    states[0], states[1] = _START, _START
    for block in range(whole):
        _compress_two(states, first, second, 64 * block)
    rest = length - 64 * whole
    blocks = 1 if rest < 56 else 2
    tails = np.zeros((2, 128), np.uint8)
    tails[0, :rest], tails[1, :rest] = first[64 * whole :], second[64 * whole :]
    for stream in range(2):
        tails[stream, rest] = 0x80
        for k in range(8):
            tails[stream, 64 * blocks - 1 - k] = ((8 * length) >> (8 * k)) & 255
    for block in range(blocks):
        _compress_two(states, tails[0], tails[1], 64 * block)
    for stream in range(2):
        _write(states[stream], digests[stream])
