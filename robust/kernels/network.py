"""Selection networks as data: which values to compare and exchange so that chosen ranks fall into place.

A network compares the same pairs of wires whatever the values are, so one instruction can serve many columns at once.
Wire i starts with the value of row i. Batcher's odd-even merge sort (1968) gives the pairs; pairs that cannot change
the wanted ranks are left out. `order` reads the network as a table, so that one compiled kernel serves every n and
every rank. `straight_line` turns a network into code, and uses a shorter network from `MEDIANS` where there is one.
"""

from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

RUN = 8  # rows that are sorted in registers while they are loaded

Comparator = tuple[int, int]  # the smaller value goes to the first wire
Staged = tuple[int, Comparator]  # with the length of the sorted runs that Batcher's network merges there
Step = tuple[int, int, int, int]  # exchange (a, b); or, when c >= 0, (a, c), (b, d), then (b, c)


@lru_cache(maxsize=256)
def steps_to_select(n: int, low: int, high: int) -> NDArray[np.int64]:
    """Steps after which wires low..high-1 hold the values of ranks low..high-1, in any order."""
    return _table(_selection(n, low, high), n)


@lru_cache(maxsize=256)
def steps_to_sort(n: int) -> NDArray[np.int64]:
    """Steps after which wire i holds the value of rank i."""
    return _table(batcher(n), n)


def shortest(n: int, low: int, high: int) -> list[Comparator]:
    """The shortest known network with the effect of `steps_to_select`, in an order that saves registers."""
    lower, upper, wanted = (n - 1) // 2, n // 2, range(low, high)
    known = [pruned(n, low, high)]
    if n in MEDIANS and low == lower and high in (lower + 1, upper + 1):
        wires = [ord(letter) - ord("a") for letter in MEDIANS[n]]
        found = list(zip(wires[::2], wires[1::2], strict=True))
        if high == upper:  # only the lower of two middle ranks is wanted
            found.append((lower, upper))
        known.append(found)
    return in_register_order(min(known, key=lambda pairs: operations(pairs, wanted)), wanted)


def pruned(n: int, low: int, high: int) -> list[Comparator]:
    """Batcher's network without the comparators that ranks low..high-1 do not need."""
    return [pair for _, pair in _selection(n, low, high)]


def operations(pairs: list[Comparator], wanted: range) -> int:
    """How many minima and maxima must be computed so that the wanted wires get their values."""
    live, count = set(wanted), 0
    for pair in reversed(pairs):
        if used := live.intersection(pair):
            count += len(used)
            live.update(pair)
    return count


def in_register_order(pairs: list[Comparator], wanted: range) -> list[Comparator]:
    """The same network in an order that loads each wire late and finishes with it early.

    Each step takes, of the comparators that may come next, the one that adds the fewest wires in use.
    """
    uses: dict[int, list[Comparator]] = {}
    for pair in pairs:
        for wire in pair:
            uses.setdefault(wire, []).append(pair)
    loaded: set[int] = set()
    order: list[Comparator] = []

    def added(pair: Comparator) -> tuple[int, int]:
        new = sum(wire not in loaded for wire in pair)
        finished = sum(len(uses[wire]) == 1 and wire not in wanted for wire in pair)
        return new - finished, new

    while len(order) < len(pairs):
        ready = [uses[i][0] for i in sorted(uses) if uses[i] and i == uses[i][0][0]]
        pair = min((pair for pair in ready if uses[pair[1]][0] is pair), key=added)
        for wire in pair:
            uses[wire].pop(0)
        loaded.update(pair)
        order.append(pair)
    return order


def batcher(n: int) -> list[Staged]:
    """Comparators that sort n wires; the stages below 2^k sort every aligned run of 2^k wires."""
    found = []
    stage = 1
    while stage < n:
        gap = stage
        while gap >= 1:
            # The order within a layer is free. This one lets `_grouped` join more pairs.
            for start in sorted(range(gap % stage, n - gap, 2 * gap), key=lambda i: i // gap % 4 != 3):
                for i in range(start, min(start + gap, n - gap)):
                    if i // (2 * stage) == (i + gap) // (2 * stage):
                        found.append((stage, (i, i + gap)))
            gap //= 2
        stage *= 2
    return found


def _selection(n: int, low: int, high: int) -> list[Staged]:
    return _without_dead(_without_shuffles(batcher(n), n, low, high), low, high)


def _without_shuffles(net: list[Staged], n: int, low: int, high: int) -> list[Staged]:
    """Leave out final comparators that only move values among wanted wires, or among the others."""
    used = [False] * n
    kept = []
    for staged in reversed(net):
        i, j = staged[1]
        if used[i] or used[j] or (low <= i < high) != (low <= j < high):
            used[i] = used[j] = True
            kept.append(staged)
    return kept[::-1]


def _without_dead(net: list[Staged], low: int, high: int) -> list[Staged]:
    """Leave out comparators whose two outputs nothing uses later."""
    live = set(range(low, high))
    kept = []
    for staged in reversed(net):
        if not live.isdisjoint(staged[1]):
            live.update(staged[1])
            kept.append(staged)
    return kept[::-1]


def _table(net: list[Staged], n: int) -> NDArray[np.int64]:
    """The steps that remain when loading has sorted full runs of RUN wires and a half run after them.

    Loading may apply comparators that were left out above. That is harmless: they only move values among wanted
    wires, or on wires that nothing uses.
    """
    whole = n - n % RUN
    half = n - n % (RUN // 2)
    rest = [
        pair
        for stage, pair in net
        if not (stage < RUN and pair[1] < whole) and not (stage < RUN // 2 and pair[1] < half)
    ]
    table = np.array(_grouped(rest), dtype=np.int64).reshape(-1, 4)
    table.setflags(write=False)  # shared by every caller, through the caches above
    return table


def _grouped(net: list[Comparator]) -> list[Step]:
    """Join three comparators on four wires into one step where the order allows it: half the memory traffic.

    The pattern comes from the odd-even merge: (a, c) and (b, d), then (b, c). The first two can be delayed
    until the third if nothing in between uses their wires.
    """
    before: list[Comparator] = []  # for each comparator, the last ones that used its two wires
    after: list[dict[int, int]] = [{} for _ in net]  # for each comparator, the next one on a wire
    last: dict[int, int] = {}
    for t, (i, j) in enumerate(net):
        before.append((last.get(i, -1), last.get(j, -1)))
        for wire in (i, j):
            if wire in last:
                after[last[wire]][wire] = t
            last[wire] = t

    joined: dict[int, Step] = {}
    taken: set[int] = set()
    for t, (b, c) in enumerate(net):
        on_b, on_c = before[t]
        if on_b < 0 or on_c < 0 or on_b == on_c or taken & {t, on_b, on_c}:
            continue
        a, d = net[on_c][0], net[on_b][1]
        if net[on_c][1] != c or net[on_b][0] != b:
            continue
        if after[on_c].get(a, len(net)) < t or after[on_b].get(d, len(net)) < t:
            continue
        joined[t] = (a, b, c, d)
        taken |= {t, on_b, on_c}
    return [joined.get(t) or (*pair, -1, -1) for t, pair in enumerate(net) if t in joined or t not in taken]


# Networks for the median of n rows, found by `python -m tests.robust.find_networks`. They need fewer minima
# and maxima than Batcher's after pruning: 112 instead of 148 for 20 rows. Each pair of letters is a
# comparator, and "a" is wire 0.
MEDIANS: Final = {
    3: "abacbc",
    4: "abcdacbd",
    5: "abcdbdbeabbcce",
    6: "abcdefadbfaebebcdecf",
    7: "abcdefbfbgaedgdecfbccddead",
    8: "abcdefghacbdegfhbcfgaebfcgdhcedf",
    9: "abcdefghbhaedfcgegbdaefgbedfdhdicedeei",
    10: "abcdefghijbdfhacegbjcfcgdhgjdiadbecdfidfegdefg",
    11: "abcdefghijceehaigibjdfaeekbdfidhbejkegfgdgdjdfcffj",
    12: "abcdefghijklikfhacbdegfgjldlckdhbjaidfcediegfkbegjfgeiefgi",
    13: "abcdefghijklikjlegfhhlfjbdaccfbjacbkeidjfgcidhbfgkfmgifgimdigidg",
    14: "abcdefghijklmnfhfnbcchjlikegbjbejmafmndgaicfdecmekdjijflcefgfnkmgjfiekgihieghk",
    15: "abcdefghijklmnflbhbdbiehikemnofnbfjncjdkklagaceidmfikomndiijcfgogjdffigkfghikmghgkhk",
    16: "abcdefghijklmnopegkoaclpaifhgpbdillnlobcfgcggoakcmhnflimblgmckeidpdjgiikhjdkgidhbfhldffhhmfihk",
    17: "abcdefghijklmnopiockbfjpbjbgflaehjbcgkcgfpdfagknfheodfcegmefnomnaghjimkmeglpfmlndkgihlhifkikfhiqhiiq",
    18: "abcdefghijklmnopqrprikfhadoqjliokpegnpdhjqbcafhqbjgjflfrmodfaolrbifpceaiehcmdkjnfodilogjemlnfjkm"
    "fkhleggijmhijkikhj",
    19: "abcdefghijklmnopqrjlmoegbdacbcnpikjofhqslpknlojndhfgimcgrsbfkmgoaebkcekrcjdfdeaqgjlsiqeqemjrlmnq"
    "dphlfmdhhshjgkknhkjnfjfkjk",
    20: "abcdefghijklmnopqrstmoegbdikacnpfhaejlfgbclpnobfcgjkkoimdhfpakjnbjqslnrtcekmemckhtgndffogsfreidl"
    "fglmgjhlgijmjkfjkshjdhjrhijkiqkqhj",
    21: "abcdefghijklmnopqrstegmofhnpbdjlrtfgiknojkjnkoacqsdhbccgimaebfcekmbjlplnlmckaidfepgndefoemjkdlms"
    "fgfjeihldfirhurugkjthijrgqkriqijkqfmkmjkkm",
    22: "abcdefghijklmnopqrstuvrvmoegfhbdacjlnpaenoqsikjkfgqudhlobcbfkpjminknbjdfsuhofncgcelmelaickhlfjdm"
    "irhucrmvgpjtefgmgkdrfsmuhjlrjkhijqlqqtksmqmneldigigkkmillmik",
    23: "abcdefghijklmnopqrstuvacbdfhbfdhnpegqsjlmoikjoaervkncgswgwdglpktdfimkmcenolnsuaiismvckkrnwhpqsgv"
    "blfodefrbkltgnksjmflsudjhuoqemgjhjjrmskojtgoemnslnfojlhmlmlohjjojl",
    24: "abcdefghijklmnopqrstuvwxrxacfhswegjlfgmoikqubdnpaebcnolpbfuwimtvcgvxdhvwjkjnkocedfkmqsbclnlmsujk"
    "gxainohprtckfgdekvruktfngogidlbjfjfulwemhveritirhlgkdsckhqmuimkrmsjqqsjmmqimlqnrlnkm",
}
