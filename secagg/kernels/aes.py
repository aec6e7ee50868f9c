"""AES-128-CTR made in registers and added to a vector: VAES (two blocks per register) or AES-NI (one).

Counter caching, after Bernstein and Schwabe 2008 ("New AES software speed records", section 4). A page is 256 blocks
whose counters differ only in the last byte. Byte 15 of a block enters column 0 in round 1, together with bytes 0, 5 and
10. Each column of round 2 takes one byte of column 0, and mixing columns is linear. So the state after two rounds is
A(bytes 0, 5, 10, 15) xor B(the other bytes), and bytes 0, 5 and 10 of a counter below 2^64 change only every 2^40
blocks. The kernel tabulates the states of the first page once per key and piece. Every further page starts from
table[b] xor (its own first state xor the table's), so eight of ten rounds remain. The time depends only on lengths: the
public counter indexes the table, never a secret, and the key schedule uses `aeskeygenassist` as S-box.

The *type* of the argument `lanes`, (0, 1) or (0,), says how many blocks fit in a register. So numba generates code for
VAES only on request: LLVM ends the process at an instruction that the processor does not have.
"""

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types

from secagg.kernels.jit import cgutils, intrinsic, kernel

LANES = {"vaes": (0, 1), "aesni": (0,)}
FEATURES = {"vaes": frozenset({"vaes", "avx2", "aes"}), "aesni": frozenset({"aes", "sse4.1"})}

ROUNDS = 10
PAGE = 1024  # words: 256 blocks of four
TILE = 32768  # words: 128 KiB, which stay in the second-level cache for all keys
SAME_TABLE = 2**42  # words: 2^40 blocks, whose counters share bytes 0, 5 and 10
LEAST = 2**16  # words of keystream that a thread takes at least
KEPT = 1024  # key schedules that a thread keeps (180 KB); with more keys, it makes them again per piece
UNROLL = 4  # registers in flight: with the eight round keys they fill the sixteen that exist

_BYTE, _WORD, _LONG = ir.IntType(8), ir.IntType(32), ir.IntType(64)
_BLOCK = ir.VectorType(_LONG, 2)
_BLOCK_WORDS = ir.VectorType(_WORD, 4)


def _long(value: int) -> Any:
    return ir.Constant(_LONG, value)


def _data(context: Any, builder: Any, array_type: Any, array: Any) -> Any:
    return context.make_array(array_type)(context, builder, array).data


def _load(builder: Any, pointer: Any, kind: Any, index: Any) -> Any:
    value = builder.load(builder.gep(builder.bitcast(pointer, kind.as_pointer()), [index]))
    value.align = 1
    return value


def _store(builder: Any, value: Any, pointer: Any, index: Any) -> None:
    target = builder.gep(builder.bitcast(pointer, value.type.as_pointer()), [index])
    builder.store(value, target).align = 1


class _Register:
    """One register of `lanes` blocks, and the instructions on it."""

    def __init__(self, builder: Any, lanes: int) -> None:
        self.builder = builder
        self.lanes = lanes
        self.type = ir.VectorType(_LONG, 2 * lanes)
        self.words = ir.VectorType(_WORD, 4 * lanes)
        self.per_page = 256 // lanes
        suffix = {1: "", 2: ".256"}[lanes]
        step = ir.FunctionType(self.type, [self.type, self.type])
        self._round, self._last = (
            cgutils.get_or_insert_function(builder.module, step, f"llvm.x86.aesni.{name}{suffix}")
            for name in ("aesenc", "aesenclast")
        )

    def repeat(self, block: Any) -> Any:
        """The same block in every lane."""
        order = ir.Constant(ir.VectorType(_WORD, 2 * self.lanes), [0, 1] * self.lanes)
        return self.builder.shuffle_vector(block, block, order)

    def last_bytes(self, first: int) -> Any:
        """A constant with the last bytes first, first + 1: the top bytes of the blocks' second little-endian halves."""
        return ir.Constant(self.type, [half for lane in range(self.lanes) for half in (0, (first + lane) << 56)])

    def counter(self, number: Any) -> Any:
        """Block `number` as 16 bytes, big-endian, in every lane."""
        block = ir.Constant(_BLOCK, [0, 0])
        return self.repeat(self.builder.insert_element(block, self.builder.bswap(number), ir.Constant(_WORD, 1)))

    def round_keys(self, schedule: Any, first: int, last: int) -> list[Any]:
        return [self.repeat(_load(self.builder, schedule, _BLOCK, _long(r))) for r in range(first, last + 1)]

    def rounds(self, states: list[Any], keys: list[Any]) -> list[Any]:
        """The same rounds on several registers at once: a single one would wait for its own result."""
        for key in keys:
            states = [self.builder.call(self._round, [state, key]) for state in states]
        return states

    def last_round(self, states: list[Any], key: Any) -> list[Any]:
        return [self.builder.call(self._last, [state, key]) for state in states]


@intrinsic
def _schedule(typing: Any, keys: Any, index: Any, schedule: Any) -> Any:
    """Write the eleven round keys of keys[index] (FIPS 197, section 5.2)."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        source = _data(context, builder, signature.args[0], args[0])
        target = _data(context, builder, signature.args[2], args[2])
        assist = cgutils.get_or_insert_function(
            builder.module, ir.FunctionType(_BLOCK, [_BLOCK, _BYTE]), "llvm.x86.aesni.aeskeygenassist"
        )
        zero = ir.Constant(_BLOCK_WORDS, [0] * 4)

        def shifted(words: Any, by: int) -> Any:
            return builder.shuffle_vector(zero, words, ir.Constant(_BLOCK_WORDS, [4 - by + i for i in range(4)]))

        key = _load(builder, source, _BLOCK, args[1])
        _store(builder, key, target, _long(0))
        constant = 1
        for number in range(1, ROUNDS + 1):
            core = builder.bitcast(builder.call(assist, [key, ir.Constant(_BYTE, constant)]), _BLOCK_WORDS)
            core = builder.shuffle_vector(core, core, ir.Constant(_BLOCK_WORDS, [3] * 4))
            words = builder.bitcast(key, _BLOCK_WORDS)
            words = builder.xor(words, shifted(words, 1))
            words = builder.xor(words, shifted(words, 2))
            key = builder.bitcast(builder.xor(words, core), _BLOCK)
            _store(builder, key, target, _long(number))
            constant = constant << 1 if constant < 0x80 else 0x1B
        return context.get_dummy_value()

    return types.void(keys, types.int64, schedule), generate


@intrinsic
def _tabulate(typing: Any, schedule: Any, first: Any, table: Any, lanes: Any) -> Any:
    """Write the states after two rounds of the 256 blocks from block `first`, a multiple of 256."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        register = _Register(builder, signature.args[3].count)
        table = _data(context, builder, signature.args[2], args[2])
        whitening, *keys = register.round_keys(_data(context, builder, signature.args[0], args[0]), 0, 2)
        base = builder.xor(register.counter(args[1]), whitening)
        at_once = 2 * UNROLL
        with cgutils.for_range(builder, _long(register.per_page // at_once)) as loop:
            index = builder.mul(loop.index, _long(at_once))
            low = builder.shl(builder.mul(index, _long(register.lanes)), _long(56))
            block = builder.insert_element(ir.Constant(_BLOCK, [0, 0]), low, ir.Constant(_WORD, 1))
            here = builder.xor(base, register.repeat(block))
            states = [builder.xor(here, register.last_bytes(w * register.lanes)) for w in range(at_once)]
            for w, state in enumerate(register.rounds(states, keys)):
                _store(builder, state, table, builder.add(index, _long(w)))
        return context.get_dummy_value()

    return types.void(schedule, types.uint64, table, lanes), generate


@intrinsic
def _add_page(typing: Any, schedule: Any, table: Any, first: Any, vector: Any, at: Any, sign: Any, lanes: Any) -> Any:
    """Add the keystream of the 256 blocks from block `first` to vector[at : at + PAGE], or subtract it."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        register = _Register(builder, signature.args[6].count)
        table = _data(context, builder, signature.args[1], args[1])
        words = builder.gep(_data(context, builder, signature.args[3], args[3]), [args[4]])
        keys = register.round_keys(_data(context, builder, signature.args[0], args[0]), 0, ROUNDS)
        (own,) = register.rounds([builder.xor(register.counter(args[2]), keys[0])], keys[1:3])
        shift = builder.xor(own, register.repeat(_load(builder, table, _BLOCK, _long(0))))

        def page(operation: Any) -> None:
            with cgutils.for_range(builder, _long(register.per_page // UNROLL)) as loop:
                first = builder.mul(loop.index, _long(UNROLL))
                indices = [builder.add(first, _long(w)) for w in range(UNROLL)]
                states = [builder.xor(_load(builder, table, register.type, i), shift) for i in indices]
                states = register.last_round(register.rounds(states, keys[3:ROUNDS]), keys[ROUNDS])
                for index, state in zip(indices, states, strict=True):
                    old = _load(builder, words, register.words, index)
                    _store(builder, operation(old, builder.bitcast(state, register.words)), words, index)

        with builder.if_else(builder.icmp_signed(">", args[5], _long(0))) as (positive, negative):
            with positive:
                page(builder.add)
            with negative:
                page(builder.sub)
        return context.get_dummy_value()

    return types.void(schedule, table, types.uint64, vector, types.int64, types.int64, lanes), generate


@intrinsic
def _swap(typing: Any, cell: Any, old: Any, new: Any) -> Any:
    """Atomic compare-and-swap of cell[0]; returns the old value."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer = _data(context, builder, signature.args[0], args[0])
        two_orderings = "monotonic", "monotonic"  # threads exchange nothing else
        found = builder.cmpxchg(pointer, args[1], args[2], *two_orderings)  # audit: piece-taken-once
        return builder.extract_value(found, 0)

    return types.int64(cell, types.int64, types.int64), generate


@kernel
def _take(taken: Any, stop: int, keys: int, threads: int) -> Any:
    """The next words [start, end) for this thread. Pieces get shorter, so that all end together."""
    start = taken[0]
    while start < stop:
        size = TILE if threads == 1 else max(LEAST // keys, 2 * (stop - start) // (3 * threads))
        end = max(start // PAGE + 1, (start + min(size, TILE)) // PAGE) * PAGE
        end = min(end, stop, (start // SAME_TABLE + 1) * SAME_TABLE)
        found = _swap(taken, start, end)
        if found == start:
            return start, end
        start = found
    return stop, stop


@kernel
def add_masks(keys: Any, signs: Any, vector: Any, offset: int, taken: Any, threads: int, lanes: Any) -> None:
    """Add every key's stream to the vector, whose first element is word `offset`.

    keys (k, 16) uint8, signs (k,) int64 of +1 and -1, vector uint32; all contiguous, and not checked here.
    `threads` threads run this function at a time. taken[0], initially `offset`, is the first free word.
    """
    count = keys.shape[0]
    schedules = np.empty((min(count, KEPT), 4 * (ROUNDS + 1)), np.uint32)
    known = 0
    table = np.empty(PAGE, np.uint32)
    edges = np.empty(2 * PAGE, np.uint32)  # pages that begin before this piece or end after it
    stop = offset + vector.shape[0]
    while True:
        start, end = _take(taken, stop, count, threads)
        if start == end:
            return
        if count > KEPT:
            known = 0
        first, last = start // PAGE, (end - 1) // PAGE
        whole_first = first + (start > first * PAGE or end < (first + 1) * PAGE)
        whole_last = last - (first < last and end < (last + 1) * PAGE)
        edges[:] = 0
        for j in range(count):
            schedule = schedules[j % KEPT]
            if j >= known:
                _schedule(keys, j, schedule)
                known = j + 1
            _tabulate(schedule, np.uint64(first * 256), table, lanes)
            if first < whole_first:
                _add_page(schedule, table, np.uint64(first * 256), edges, 0, signs[j], lanes)
            for page in range(whole_first, whole_last + 1):
                at = page * PAGE - offset
                _add_page(schedule, table, np.uint64(page * 256), vector, at, signs[j], lanes)
            if whole_last < last:
                _add_page(schedule, table, np.uint64(last * 256), edges, PAGE, signs[j], lanes)
        if first < whole_first:
            _add_part(vector, offset, edges[:PAGE], first * PAGE, start, end)
        if whole_last < last:
            _add_part(vector, offset, edges[PAGE:], last * PAGE, start, end)


@kernel
def _add_part(vector: Any, offset: int, page: Any, at: int, start: int, end: int) -> None:
    """Add the words in [start, end) of the page that begins at word `at` to the vector."""
    start, end = max(at, start), min(at + PAGE, end)
    part, source = vector[start - offset : end - offset], page[start - at : end - at]
    for i in range(part.shape[0]):
        part[i] += source[i]
