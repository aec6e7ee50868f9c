"""Arithmetic in the prime field of p = 2^257 - 93, in ten limbs of 26 bits, for Shamir's scheme.

A number is x[0] + x[1] 2^26 + ... + x[9] 2^234, and 2^260 = 744 (mod p) folds the overflow of the top into the bottom.
Between steps, limbs may have a little more than 26 bits: one round of carries on all limbs at once keeps them there. So
no carry ripples, and vector instructions handle sixteen points at once. Loop counts are public, and no branch or
address depends on a secret; the last reduction computes both candidates and selects one by mask. So the time does not
depend on secrets and shares if the processor multiplies integers in constant time.

All numbers are int64: numba turns an int64 and a uint64 into a float.
"""

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types

from secagg.kernels.jit import intrinsic, kernel

BYTES = 33
LIMBS = 10
BITS = 26
MASK = 2**BITS - 1
FOLD = 744  # 2^260 mod p
TOP_BITS = 257 - BITS * (LIMBS - 1)  # of the last limb, below 2^257
TOP_MASK = 2**TOP_BITS - 1
TOP_FOLD = 93  # 2^257 mod p
POINTS = 16  # evaluated at once
PAIRS = LIMBS // 2  # products use pairs of limbs, for the widest multiplication


@kernel
def _unpack(packed: Any, limbs: Any) -> None:
    """Ten limbs from 33 bytes, little-endian: each lies in the four bytes from its lowest bit on."""
    for i in range(LIMBS):
        at = BITS * i // 8
        word = np.int64(packed[at])
        word |= np.int64(packed[at + 1]) << 8
        word |= np.int64(packed[at + 2]) << 16
        word |= np.int64(packed[at + 3]) << 24
        limbs[i] = (word >> (BITS * i % 8)) & MASK


@kernel
def _ripple(x: Any) -> int:
    """Carry through limbs of any size; return the carry out of the last one."""
    carry = 0
    for i in range(LIMBS):
        carry += x[i]
        x[i] = carry & MASK
        carry >>= BITS
    return carry


@kernel
def _pack(x: Any, packed: Any) -> None:
    """Write the number below p, from limbs up to 2^46, as 33 bytes, little-endian. Overwrites the limbs."""
    over = _ripple(x)
    high = x[LIMBS - 1] >> TOP_BITS
    x[LIMBS - 1] &= TOP_MASK
    x[0] += over * FOLD + high * TOP_FOLD
    _ripple(x)  # below 2^257 + 2^31 now, and so below 2p
    less = np.empty(LIMBS, np.int64)
    for i in range(LIMBS):
        less[i] = x[i]
    less[0] += TOP_FOLD
    _ripple(less)  # x - p + 2^257
    take = -(less[LIMBS - 1] >> TOP_BITS)  # all ones if x >= p, else zero
    less[LIMBS - 1] &= TOP_MASK
    for i in range(LIMBS):
        x[i] ^= (x[i] ^ less[i]) & take
    for j in range(BYTES):
        i, shift = 8 * j // BITS, 8 * j % BITS
        word = x[i] >> shift
        if i + 1 < LIMBS:
            word |= x[i + 1] << (BITS - shift)
        packed[j] = word & 255


@kernel
def _times_plus(x: Any, factors: Any, addend: Any) -> None:
    """x = x * factors + addend for POINTS numbers, limb i of point p at x[i * POINTS + p], factors < 2^16.

    With limbs below 2^27, a product is below 2^43 and a carry below 2^17; limb 0 plus 744 times the carry is below 2^27
    again. The masks change no value: they show the compiler that 32-bit multiplications and unsigned shifts suffice.
    """
    for p in range(POINTS):
        factor = factors[p] & 0xFFFF
        carry = 0
        for i in range(LIMBS):
            value = (x[i * POINTS + p] & 0xFFFFFFFF) * factor + (addend[i] & MASK)
            x[i * POINTS + p] = (value & MASK) + carry
            carry = value >> BITS
        x[p] += carry * FOLD


@kernel
def _pack_points(x: Any, count: int, packed: Any) -> None:
    limbs = np.empty(LIMBS, np.int64)
    for p in range(count):
        for i in range(LIMBS):
            limbs[i] = x[i * POINTS + p]
        _pack(limbs, packed[p])


@kernel
def evaluate(polynomials: Any, points: Any, values: Any) -> None:
    """values[s, k] = the polynomial polynomials[s] (coefficients from a_0 up, 33 bytes each) at points[k]."""
    degree = polynomials.shape[1]
    coefficients = np.empty((degree, LIMBS), np.int64)
    factors = np.empty(POINTS, np.int64)
    x = np.empty(LIMBS * POINTS, np.int64)
    for s in range(polynomials.shape[0]):
        for k in range(degree):
            _unpack(polynomials[s, k], coefficients[k])
        for start in range(0, points.shape[0], POINTS):
            count = min(POINTS, points.shape[0] - start)
            factors[:] = 0
            factors[:count] = points[start : start + count]
            x[:] = 0
            for k in range(degree - 1, -1, -1):  # Horner
                _times_plus(x, factors, coefficients[k])
            _pack_points(x, count, values[s, start : start + count])


@kernel
def denominators(points: Any, values: Any) -> None:
    """values[k] = points[k] * product of |points[j] - points[k]| over all other j, 33 bytes each."""
    nothing = np.zeros(LIMBS, np.int64)
    own = np.empty(POINTS, np.int64)
    factors = np.empty(POINTS, np.int64)
    x = np.empty(LIMBS * POINTS, np.int64)
    for start in range(0, points.shape[0], POINTS):
        count = min(POINTS, points.shape[0] - start)
        own[:] = 1
        own[:count] = points[start : start + count]
        x[:] = 0
        x[:POINTS] = own
        for j in range(points.shape[0]):
            for p in range(POINTS):
                distance = abs(points[j] - own[p])
                factors[p] = distance + (distance == 0)
            _times_plus(x, factors, nothing)
        _pack_points(x, count, values[start : start + count])


@intrinsic
def _add_product(typing: Any, columns: Any, index: Any, left: Any, right: Any) -> Any:
    """The 128-bit number at columns[2 * index] += left * right, both at least 0."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        wide = ir.IntType(128)
        data = context.make_array(signature.args[0])(context, builder, args[0]).data
        column = builder.gep(builder.bitcast(data, wide.as_pointer()), [args[1]])
        old = builder.load(column)
        old.align = 8
        product = builder.mul(builder.zext(args[2], wide), builder.zext(args[3], wide))
        builder.store(builder.add(old, product), column).align = 8
        return context.get_dummy_value()

    return types.void(columns, types.int64, types.int64, types.int64), generate


@kernel
def _pair(limbs: Any, pairs: Any) -> None:
    """Five limbs of 52 bits from ten of 26."""
    for i in range(PAIRS):
        pairs[i] = limbs[2 * i] | limbs[2 * i + 1] << BITS


@kernel
def dot(weights: Any, shares: Any, values: Any) -> None:
    """values[s] = sum over k of weights[k] * shares[s, k], all of them 33 bytes.

    Products of 52-bit limbs are summed in columns of 128 bits, which have room for 2^22 of them; there are at
    most 5 * 65,535. Carries and the reduction happen once per secret.
    """
    factors = np.empty((weights.shape[0], PAIRS), np.int64)
    limbs = np.empty(LIMBS, np.int64)
    share = np.empty(PAIRS, np.int64)
    for k in range(weights.shape[0]):
        _unpack(weights[k], limbs)
        _pair(limbs, factors[k])
    columns = np.empty(2 * (2 * PAIRS - 1), np.int64)
    digits = np.empty(2 * LIMBS + 1, np.int64)
    for s in range(shares.shape[0]):
        columns[:] = 0
        for k in range(weights.shape[0]):
            _unpack(shares[s, k], limbs)
            _pair(limbs, share)
            factor = factors[k]
            for i in range(PAIRS):
                for j in range(PAIRS):
                    _add_product(columns, i + j, share[i], factor[j])
        digits[:] = 0
        for i in range(2 * PAIRS - 1):
            low, high = columns[2 * i], columns[2 * i + 1]
            digits[2 * i] += low & MASK
            digits[2 * i + 1] += (low >> BITS) & MASK
            digits[2 * i + 2] += ((low >> (2 * BITS)) & 0xFFF) | (high << 12 & MASK)
            digits[2 * i + 3] += (high >> 14) & MASK
            digits[2 * i + 4] += high >> 40
        over = _ripple(digits[:LIMBS])
        digits[LIMBS] += over
        over = _ripple(digits[LIMBS : 2 * LIMBS]) + digits[2 * LIMBS]
        for i in range(LIMBS):
            digits[i] += digits[LIMBS + i] * FOLD
        digits[0] += over * FOLD * FOLD
        _pack(digits[:LIMBS], values[s])
