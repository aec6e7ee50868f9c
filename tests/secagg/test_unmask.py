"""The server's last step alone: all masks are removed, on any number of threads."""

import numpy as np
import pytest

from secagg import reference
from secagg.crypto.keys import AgreementKey
from secagg.crypto.prg import add_masks, pairwise_sign
from secagg.exposure.schedules import Schedule
from secagg.protocol import transcript, unmask
from secagg.protocol.messages import Dealing, KeyAdvert
from tests.secagg.cluster import make_plan
from tests.secagg.drbg import Drbg


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("groupings", [1, 3])
def test_all_masks_come_off_on_however_many_threads(
    groupings: int, threads: int, monkeypatch: pytest.MonkeyPatch
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
                keys, signs = [reference.self_key(seeds[v, r + 1], plan.hash, v, r)], [1]
                for peer in set(group) - {v}:
                    agreed = AgreementKey.from_private(private[v]).agree(public[peer])
                    keys.append(reference.pairwise_key(agreed, plan.hash, v, peer, r))
                    signs.append(pairwise_sign(v, peer))
                add_masks(totals[r, g], keys, signs)
                totals[r, g] += np.uint32(v)
    opened = unmask.AgreedOpening(
        plan=plan,
        adverts={v: KeyAdvert(v, b"", public[v], b"") for v in plan.ids},
        dealings={v: Dealing(v, (), b"", b"", b"", b"") for v in plan.ids},
        holders={},
        survivors=alive,
        groups=tuple(totals),
    )
    secrets = seeds | {(v, transcript.KEY_SECRET): private[v] for v in gone}
    monkeypatch.setattr(unmask, "PAIRS_PER_TASK", 4)  # several pieces
    lost = unmask.remove_masks(opened, unmask.Rebuilt(secrets, {}, {}, {}), totals, threads=threads)
    assert lost == {}
    for (r, g), total in totals.items():
        assert set(total.tolist()) == {sum(set(plan.groupings[r][g]) & alive)}
