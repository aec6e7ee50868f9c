"""Work over forked processes: the same bytes, errors where they can be handled, and nobody left behind."""

from __future__ import annotations

import os
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from secagg import PeerError, forks, transcript, unmask
from secagg.groupings import Schedule
from secagg.keys import AgreementKey
from secagg.masks import pairwise_key, pairwise_sign, self_key
from secagg.messages import Dealing, KeyAdvert
from secagg.prg import add_masks
from tests.secagg.cluster import make_plan
from tests.secagg.drbg import Drbg

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")


def no_child_is_left() -> bool:
    try:
        os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        return True
    return False


def numbered(start: int, stop: int) -> bytes:
    return b"".join(i.to_bytes(4, "little") for i in range(start, stop))


@settings(deadline=None, max_examples=20)
@given(st.integers(0, 40), st.integers(1, 5), st.integers(1, 9))
def test_items_come_back_in_order_whoever_did_them(count: int, processes: int, least: int) -> None:
    rows = forks.spread(numbered, count, width=4, processes=processes, least=least)
    assert rows.shape == (count, 4)
    assert rows.copy().view("<u4").ravel().tolist() == list(range(count))
    assert no_child_is_left()


def process_ids(start: int, stop: int) -> bytes:
    return os.getpid().to_bytes(4, "little") * (stop - start)


@pytest.mark.parametrize(("count", "processes", "least", "used"), [(9, 3, 3, 3), (8, 3, 3, 2), (5, 3, 3, 1)])
def test_nobody_gets_less_than_is_worth_a_fork(count: int, processes: int, least: int, used: int) -> None:
    rows = forks.spread(process_ids, count, width=4, processes=processes, least=least)
    assert len({bytes(row) for row in rows}) == used


def test_without_fork_everything_is_done_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "fork")
    rows = forks.spread(process_ids, 6, width=4, processes=3)
    assert {bytes(row) for row in rows} == {os.getpid().to_bytes(4, "little")}


def test_an_error_in_a_child_is_raised_here_with_its_own_type() -> None:
    def work(start: int, stop: int) -> bytes:
        if stop == 10:
            raise PeerError("the last part is bad", culprit=7)
        return bytes(stop - start)

    with pytest.raises(PeerError, match="the last part") as raised:
        forks.spread(work, 10, width=1, processes=2)
    assert raised.value.culprit == 7
    assert no_child_is_left()


def test_what_only_a_child_cannot_do_is_done_here() -> None:
    here = os.getpid()

    def work(start: int, stop: int) -> bytes:
        if os.getpid() != here:
            os._exit(9)
        return bytes([1] * (stop - start))

    assert forks.spread(work, 10, width=1, processes=3).sum() == 10
    assert no_child_is_left()


def test_an_error_here_ends_the_children_at_once() -> None:
    here, begun = os.getpid(), time.monotonic()

    def work(start: int, stop: int) -> bytes:
        if os.getpid() == here:
            raise PeerError("the first part is bad")
        time.sleep(60)
        return bytes(stop - start)

    with pytest.raises(PeerError, match="the first part"):
        forks.spread(work, 4, width=1, processes=2)
    assert no_child_is_left()
    assert time.monotonic() - begun < 30


@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize("groupings", [1, 3])
def test_all_masks_come_off_whether_or_not_helpers_are_forked(
    groupings: int, processes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sums of survivors, with the masks that dropped peers left in them, become the plain sums."""
    schedule = Schedule(name="random", size=5 if groupings > 1 else 10, groupings=groupings)
    plan = make_plan(10, length=50, schedule=schedule)
    gone, alive = {1, 6, 8}, frozenset(range(10)) - {1, 6, 8}
    private = {v: Drbg(b"mask %d" % v)(32) for v in plan.ids}
    public = {v: AgreementKey.from_private(key).public for v, key in private.items()}
    seeds = {(v, r + 1): Drbg(b"seed %d %d" % (v, r))(32) for v in alive for r in range(groupings)}
    totals = {}
    for r, grouping in enumerate(plan.groupings):
        for g, group in enumerate(grouping):
            totals[r, g] = np.zeros(plan.length, np.uint32)
            for v in set(group) & alive:
                keys, signs = [self_key(seeds[v, r + 1], plan.hash, v, r)], [1]
                for peer in set(group) - {v}:
                    agreed = AgreementKey.from_private(private[v]).agree(public[peer])
                    keys.append(pairwise_key(agreed, plan.hash, v, peer, r))
                    signs.append(pairwise_sign(v, peer))
                add_masks(totals[r, g], keys, signs)
                totals[r, g] += np.uint32(v)
    opened = unmask.Opened(
        plan=plan,
        adverts={v: KeyAdvert(v, b"", public[v], b"") for v in plan.ids},
        dealings={v: Dealing(v, (), b"", b"", b"", b"") for v in plan.ids},
        holders={},
        survivors=alive,
        rows=tuple(totals),
    )
    secrets = seeds | {(v, transcript.KEY_SECRET): private[v] for v in gone}
    spread = forks.spread
    used = []

    def eager(*args: object, **options: object) -> object:
        used.append(options["processes"])
        return spread(*args, **{**options, "least": 1})  # type: ignore[arg-type]

    monkeypatch.setattr(forks, "spread", eager)
    lost = unmask.remove_masks(opened, unmask.Rebuilt(secrets, {}, {}), totals, processes=processes)
    assert lost == {}
    assert used == [processes]
    for (r, g), total in totals.items():
        assert set(total.tolist()) == {sum(set(plan.groupings[r][g]) & alive)}
