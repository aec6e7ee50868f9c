"""SHA-256 with the processor's SHA instructions, for many short messages (FIPS 180-4, section 6.2).

The registers hold four of the state's eight words each, (F, E, B, A) and (H, G, D, C), and one instruction does two
rounds. No branch and no index depends on the data: secrets may be hashed here.
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


@intrinsic
def _compress(typing: Any, state: Any, text: Any, at: Any) -> Any:
    """Add the 64 bytes text[at:] to the state."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        registers = context.make_array(signature.args[0])(context, builder, args[0]).data
        block = builder.gep(context.make_array(signature.args[1])(context, builder, args[1]).data, [args[2]])

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
        words = []
        for i in range(4):
            part = load(block, _SIXTEEN, i)
            words.append(builder.bitcast(builder.shuffle_vector(part, part, reverse), _FOUR))
        before = abef, cdgh = load(registers, _FOUR, 0), load(registers, _FOUR, 1)
        for i in range(16):  # four rounds each
            if i >= 4:
                part = builder.call(first, [words[i - 4], words[i - 3]])
                part = builder.add(part, pick(words[i - 2], words[i - 1], [1, 2, 3, 4]))
                words.append(builder.call(second, [part, words[i - 1]]))
            sums = builder.add(words[i], ir.Constant(_FOUR, _CONSTANTS[4 * i : 4 * i + 4]))
            cdgh = builder.call(rounds, [cdgh, abef, sums])
            abef = builder.call(rounds, [abef, cdgh, pick(sums, sums, [2, 3, 0, 1])])
        for i, after in enumerate((abef, cdgh)):
            builder.store(builder.add(after, before[i]), place(registers, _FOUR, i)).align = 1
        return context.get_dummy_value()

    return types.void(state, text, types.int64), generate


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
        for k in range(8):
            word = state[_ORDER[k]]
            for j in range(4):
                digests[row, 4 * k + j] = (word >> np.uint32(24 - 8 * j)) & np.uint32(255)
