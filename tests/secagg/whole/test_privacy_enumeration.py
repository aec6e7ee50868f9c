"""Privacy by counting: over all masks in a tiny ring, what the adversary sees depends on the allowed sums only.

Real clients mask; each mask is then a variable that takes every value. Updates with the same allowed sums must give the
same distribution of views, count for count, and updates with other sums must not. The negative tests break the masking
and see the count fail.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import pytest

from secagg.exposure.audit import REPORT_EVEN_IF_EXPOSED, Policy
from secagg.whole import Answer, Round, transcript
from secagg.whole import client as whole_client
from tests.secagg.whole.cast import Cast
from tests.secagg.whole.symbols import Row, allowed, learned, rank, recording, views

OPEN = Policy(min_survivors=2, anonymity=2, max_leverage=1.0, memory="round", mode=REPORT_EVEN_IF_EXPOSED)
Groups = Mapping[tuple[int, tuple[int, int]], Collection[int]]


def rows_of(
    cast: Cast,
    rounds: int = 1,
    *,
    absent: Collection[int] = (),
    contexts: Mapping[int, bytes] | None = None,
    adverts: Mapping[int, Mapping[int, Any]] | None = None,
    present: Mapping[int, Collection[int]] | None = None,
) -> tuple[list[Row], Groups]:
    """The rows that clients send: some do not answer, some are sent other data, adverts or members present."""
    rows: list[Row] = []
    with recording() as recorder:
        for round in range(rounds):
            for member, message in cast.begin(round).items():
                if member not in absent:
                    message = changed(message, member, contexts, adverts)
                    chosen = (present or {}).get(member, cast.clients)
                    message = replace(message, adverts=tuple(a for a in message.adverts if a.sender in chosen))
                    rows += recorder.rows(cast.answer(member, message))
            cast.server.close()
    return rows, {(t, group): members for t in range(rounds) for group, members in cast.groups(t).items()}


def changed(
    message: Round, member: int, contexts: Mapping[int, bytes] | None, adverts: Mapping[int, Mapping[int, Any]] | None
) -> Round:
    other = (adverts or {}).get(member, {})
    shown = tuple(other.get(advert.sender, advert) for advert in message.adverts)
    return replace(message, data=(contexts or {}).get(member, b""), adverts=shown)


def flaws(rows: Sequence[Row], groups: Groups, ring: int, colluders: Collection[int] = ()) -> int:
    """How many pairs of updates with the same allowed sums can be told apart, or with other sums cannot.

    A client has one update per round, in all its groups. The colluders' own updates are known: zero.
    """
    sums = allowed(rows, groups, colluders)
    unknowns = sorted({(row.client, row.round) for row in rows if row.client not in colluders})
    by_sums: dict[tuple[int, ...], Any] = {}
    wrong = 0
    for values in product(range(ring), repeat=len(unknowns)):
        given = dict(zip(unknowns, values, strict=True))
        inputs = [given.get((row.client, row.round), 0) for row in rows]
        opened = tuple(sum(map(int.__mul__, one, inputs)) % ring for one in sums)
        seen = views(rows, inputs, ring, colluders)
        wrong += by_sums.setdefault(opened, seen) != seen
    different = {tuple(sorted(found.items())) for found in by_sums.values()}
    return wrong + len(by_sums) - len(different)


def pairs(**settings: Any) -> Cast:
    return Cast(policy=OPEN, length=1, **settings)


@pytest.mark.parametrize(("size", "ring"), [(2, 2), (2, 5), (3, 3), (3, 4), (4, 2)])
def test_a_whole_group_shows_its_sum_and_nothing_else(size: int, ring: int) -> None:
    rows, groups = rows_of(pairs(members=size, size=size))
    assert len(allowed(rows, groups)) == 1
    assert flaws(rows, groups, ring) == 0


@pytest.mark.parametrize(("size", "bad"), [(3, [1]), (4, [0]), (4, [1, 3]), (3, [0, 2])])
def test_with_colluders_the_sum_of_the_honest_members_is_shown(size: int, bad: list[int]) -> None:
    rows, groups = rows_of(pairs(members=size, size=size))
    assert flaws(rows, groups, 3, bad) == 0


@pytest.mark.parametrize(("size", "bad"), [(2, []), (3, []), (4, []), (4, [0])])
def test_a_group_with_a_missing_member_shows_nothing(size: int, bad: list[int]) -> None:
    rows, groups = rows_of(pairs(members=size, size=size), absent=[1])
    assert allowed(rows, groups, bad) == []
    assert flaws(rows, groups, 2, bad) == 0


@pytest.mark.parametrize("split", [{0: b"other"}, {0: b"other", 1: b"other"}, {0: b"a", 1: b"b", 2: b"c"}])
def test_a_group_with_two_contexts_shows_nothing(split: dict[int, bytes]) -> None:
    rows, groups = rows_of(pairs(members=3, size=3), contexts=split)
    assert (allowed(rows, groups) == []) == (len(set(split.values())) + (len(split) < 3) > 1)
    assert flaws(rows, groups, 3) == 0


def test_one_context_for_a_missing_colluder_is_enough() -> None:
    """The colluder's own context does not matter: the theorem asks for the honest members only."""
    rows, groups = rows_of(pairs(members=3, size=3), contexts={2: b"other"})
    assert len(allowed(rows, groups, [2])) == 1
    assert flaws(rows, groups, 3, [2]) == 0


def test_over_two_groupings_the_sums_of_both_are_shown() -> None:
    settings = {"members": 4, "size": 2, "groupings": 2, "schedule": "random"}
    rows, groups = rows_of(pairs(**settings))
    assert len(allowed(rows, groups)) == 4
    assert flaws(rows, groups, 3) == 0
    rows, groups = rows_of(pairs(**settings), absent=[1])
    assert len(allowed(rows, groups)) == 2
    assert flaws(rows, groups, 3) == 0


@pytest.mark.parametrize("schedule", ["fixed", "random"])
def test_over_two_rounds_the_sums_of_each_are_shown(schedule: str) -> None:
    rows, groups = rows_of(pairs(members=3, size=3, schedule=schedule), 2)
    assert len(allowed(rows, groups)) == 2
    assert flaws(rows, groups, 2) == 0


def test_an_equivocated_advert_shows_nothing() -> None:
    """Client 0 is shown an earlier, honestly signed key of client 1."""
    cast = pairs(members=3, size=3)
    old = cast.hello(1)
    cast.clients[1] = cast.new_client(1)
    rows, _ = rows_of(cast, adverts={0: {1: old}})
    assert learned(rows) == []
    assert len({row.seen for row in rows}) == 2
    everything = [views(rows, inputs, 2) for inputs in product(range(2), repeat=3)]
    assert all(seen == everything[0] for seen in everything)


@pytest.mark.parametrize(
    ("sets", "opened"),
    [
        ({0: (0, 1, 2), 1: (0, 1, 2), 2: (0, 1, 2)}, 1),
        ({0: (0, 1), 1: (0, 1), 2: (2, 3), 3: (2, 3)}, 2),
        ({0: (0, 1), 1: (0, 1, 2), 2: (1, 2)}, 0),
        ({0: (0, 1), 1: (0, 1), 2: (0, 1, 2)}, 1),
        ({0: (0, 1, 2), 1: (0, 1, 2), 2: (1, 2)}, 0),
    ],
)
def test_a_roll_call_shows_the_sums_of_sets_whose_members_all_answered_for_them(
    sets: dict[int, tuple[int, ...]], opened: int
) -> None:
    cast = pairs(members=4, size=4, roll_call=True)
    rows, _ = rows_of(cast, present=sets, absent=[v for v in range(4) if v not in sets])
    groups = {(0, chosen): chosen for chosen in sorted(set(sets.values()))}
    rows = [replace(row, group=row.members) for row in rows]  # type: ignore[arg-type]
    assert len(allowed(rows, groups)) == opened  # type: ignore[arg-type]
    assert flaws(rows, groups, 2) == 0  # type: ignore[arg-type]


# --- the count fails when the masking is broken ----------------------------------------------------------------


def test_the_count_fails_without_the_context_in_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    infos = transcript.mask_infos
    monkeypatch.setattr(transcript, "mask_infos", lambda f, t, _, *rest: infos(f, t, bytes(32), *rest))
    rows, groups = rows_of(pairs(members=3, size=3), contexts={0: b"other"})
    assert allowed(rows, groups) == []
    assert flaws(rows, groups, 3) > 0
    assert rank(learned(rows)) == 1


def test_the_count_fails_without_the_members_present_in_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transcript, "present_hash", lambda *_: b"")
    rows, _ = rows_of(
        pairs(members=4, size=4, roll_call=True), present={0: (0, 1), 1: (0, 1, 2), 2: (1, 2)}, absent=[3]
    )
    groups = {(0, chosen): chosen for chosen in ((0, 1), (0, 1, 2), (1, 2))}
    rows = [replace(row, group=row.members) for row in rows]  # type: ignore[arg-type]
    assert allowed(rows, groups) == []  # type: ignore[arg-type]
    assert flaws(rows, groups, 2) > 0  # type: ignore[arg-type]
    assert rank(learned(rows)) == 1


@pytest.mark.parametrize("size", [3, 4])  # without any mate, a client has no masks and sends nothing
def test_the_count_fails_if_a_client_masks_with_fewer_mates(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if clients accepted a group without the member that is missing."""
    check = whole_client.check_groups

    def fewer(*given: Any) -> Any:
        groups, agreed, left_out = check(*given)
        return [(group, members[:-1]) for group, members in groups], agreed, left_out

    monkeypatch.setattr(whole_client, "check_groups", fewer)
    rows, groups = rows_of(pairs(members=size, size=size), absent=[size - 1])
    assert flaws(rows, groups, 2) > 0
    assert rank(learned(rows)) > 0


def test_the_count_fails_if_one_key_masks_two_answers() -> None:
    """Two clients from the same bytes, each with its own store, as if storage had been rolled back."""
    cast = pairs(members=2, size=2, rounds=1)
    messages = cast.begin()
    saved = cast.clients[0].save()
    answers: list[Answer] = []
    with recording() as recorder:
        for value in (1, 2):
            cast.clients[0], cast.stores[0] = cast.restore(0, saved), type(cast.stores[0])()
            answers.append(cast.answer(0, messages[0], [value]))
        rows = [row for answer in answers for row in recorder.rows(answer)]
    assert allowed(rows, {(0, group): members for group, members in cast.groups().items()}) == []
    assert rank(learned(rows)) == 1
