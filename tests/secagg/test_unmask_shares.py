"""The shares of the last stage: which are taken, who is named for others, and what is rebuilt from them."""

from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from secagg import Schedule, Stage
from secagg.errors import PeerError
from secagg.protocol import transcript, unmask
from secagg.protocol.messages import Unmasking
from secagg.protocol.unmask import ENTRY, AgreedOpening, Shares, rebuild
from tests.secagg.cluster import Cluster, make_inputs, make_plan

PLAN = make_plan(7, colluders=1, threshold=5, schedule=Schedule(name="random", size=7, groupings=1), round=8)
GONE = 3  # dealt, and sent no vector
ALIVE = tuple(v for v in range(7) if v != GONE)


@cache
def scene() -> tuple[AgreedOpening, dict[int, Unmasking]]:
    """What was agreed to open, and what each survivor gave."""
    cluster = Cluster(PLAN, make_inputs(PLAN))
    cluster.start()
    while cluster.server.stage < Stage.UNMASKING:
        if cluster.server.stage is Stage.INPUTS:
            cluster.flying = [letter for letter in cluster.flying if letter.client != GONE]
        cluster.deliver_all()
        cluster.advance()
    cluster.deliver_all()
    memory, views = cluster.server._memory, cluster.server._views
    opening = AgreedOpening(
        plan=PLAN,
        adverts=dict(memory.adverts),
        dealings=dict(memory.dealings),
        holders={v: views.places(v) for v in memory.dealings},
        survivors=frozenset(memory.survivors),
        groups=memory.groups,
    )
    return opening, dict(memory.unmaskings)


def test_every_share_of_an_honest_run_is_taken() -> None:
    opening, messages = scene()
    assert sorted(messages) == list(ALIVE)
    shares = Shares(opening)
    assert shares.add_all(messages.values()) == {}
    assert shares.own.keys() == {(v, 1) for v in ALIVE}
    for (owner, which), seed in shares.own.items():
        expected = opening.dealings[owner].commitments[which - 1]
        assert transcript.seed_commitment(PLAN.hash, owner, which - 1, seed) == expected
    for holder, received in shares.by_holder.items():
        assert received.wanted.secrets == [*((v, 1) for v in ALIVE), (GONE, 0)]
        entries = messages[holder].seeds + messages[holder].keys
        assert received.shares.tobytes() == b"".join(entries[at : at + 33] for at in range(0, 7 * ENTRY, ENTRY))
        assert received.good.all()
        assert "shares=" not in repr(received)
    assert "by_holder=" not in repr(shares)
    assert "own=" not in repr(shares)


def test_where_the_good_shares_of_each_secret_are() -> None:
    opening, messages = scene()
    broken = bytearray(messages[2].seeds)
    broken[ENTRY] ^= 1  # its share of client 1
    given = {**messages, 2: replace(messages[2], seeds=bytes(broken))}
    shares = Shares(opening)
    assert shares.add_all(given.values()) == {2: "client 2 gave a wrong share of client 1"}
    places = shares.places([(GONE, 0), (1, 1), (0, 1), (9, 9)])
    assert places.tolist() == [[6] * 6, [1, 1, -1, 1, 1, 1], [0] * 6, [-1] * 6]


def changed(message: Unmasking, which: str) -> Unmasking:
    flipped = bytes([message.own[0] ^ 1]) + message.own[1:]
    last = bytearray(message.keys)
    last[-1] ^= 1
    others = tuple(v for v in ALIVE if v != 6)
    changes: Any = (
        {
            "too few of its own": {"own": message.own[:-1]},
            "too many of its own": {"own": message.own + bytes(32)},
            "another of its own": {"own": flipped},
            "another nonce": {"keys": bytes(last)},
            "too few seeds": {"seeds": message.seeds[:-ENTRY]},
            "too many keys": {"keys": message.keys + bytes(ENTRY)},
            "a key of a survivor": {"seed_owners": others, "key_owners": (GONE, 6), "seeds": message.seeds[:-ENTRY],
                                    "keys": message.keys + bytes(ENTRY)},
            "a seed of a dropout": {"seed_owners": (*ALIVE, GONE), "key_owners": ()},
            "a key of nobody": {"key_owners": (GONE, 99), "keys": message.keys + bytes(ENTRY)},
        }[which]
    )  # fmt: skip
    return replace(message, **changes)


@pytest.mark.parametrize(
    ("which", "says"),
    [
        ("too few of its own", "client 1 gave the wrong number of its own seeds"),
        ("too many of its own", "client 1 gave the wrong number of its own seeds"),
        ("another of its own", "client 1 gave a wrong seed of its own"),
        ("another nonce", "client 1 gave a wrong share of client 3"),
        ("too few seeds", "client 1 gave the wrong number of shares"),
        ("too many keys", "client 1 gave the wrong number of shares"),
        ("a key of a survivor", "client 1 gave shares of the wrong kind"),
        ("a seed of a dropout", "client 1 gave shares of the wrong kind"),
        ("a key of nobody", "client 1 gave shares of a client that dealt none"),
    ],
)
@pytest.mark.parametrize("first", [True, False])
def test_who_gives_something_else_is_named(which: str, says: str, first: bool) -> None:
    opening, messages = scene()
    shares = Shares(opening)
    if not first:  # an honest message with the usual owners came before
        shares.add(messages[0])
    with pytest.raises(PeerError, match=f"^{says}$") as refused:
        shares.add(changed(messages[1], which))
    assert refused.value.culprit == 1
    taken = which == "another nonce"  # then all other shares count
    assert (1 in shares.by_holder) is taken
    if taken:
        assert shares.by_holder[1].good.tolist() == [True] * 6 + [False]


def rebuilt(holders: Any, opening: AgreedOpening | None = None) -> Any:
    agreed, messages = scene()
    shares = Shares(opening or agreed)
    shares.add_all(messages[v] for v in holders)
    return rebuild(shares)


def test_t_shares_rebuild_what_owners_did_not_give() -> None:
    opening, messages = scene()
    found = rebuilt((0, 1, 2, 4, 6))  # client 5 gave nothing
    assert (found.missing, found.cheating_dealers, found.unfit) == ({}, {}, {})
    assert found.secrets.keys() == {(GONE, 0), *((v, 1) for v in ALIVE)}
    assert found.secrets[5, 1] == messages[5].own
    assert repr(found) == "Rebuilt(missing={}, cheating_dealers={}, unfit={})"
    assert unmask._is_right(opening, (GONE, 0), found.secrets[GONE, 0])
    few = rebuilt((0, 1, 2, 4))
    assert few.missing == {
        (GONE, 0): "4 good shares of client 3, the threshold is 5",
        (5, 1): "4 good shares of client 5, the threshold is 5",
        (6, 1): "4 good shares of client 6, the threshold is 5",
    }
    assert few.secrets == {(v, 1): messages[v].own for v in (0, 1, 2, 4)}


def lying(dealer: int) -> AgreedOpening:
    """The dealer committed to another seed than the one that it shared."""
    opening, _ = scene()
    lie = replace(opening.dealings[dealer], commitments=(bytes(32),))
    return replace(opening, dealings={**opening.dealings, dealer: lie})


def test_a_dealer_whose_shares_do_not_give_its_seed_is_convicted() -> None:
    found = rebuilt((0, 1, 2, 4, 6), lying(5))
    why = "its own shares do not rebuild its seed of grouping 0"
    assert found.cheating_dealers == {5: why}
    assert found.missing == {(5, 1): f"client 5: {why}"}
    assert found.unfit == {5: (1, (0, 1, 2, 4, 6))}
    opening, _ = scene()
    advert = replace(opening.adverts[GONE], mask=bytes(32))
    found = rebuilt((0, 1, 2, 4, 6), replace(opening, adverts={**opening.adverts, GONE: advert}))
    assert found.cheating_dealers == {GONE: "its own shares do not rebuild its mask key"}
    assert found.unfit == {GONE: (0, (0, 1, 2, 4, 6))}


def test_only_good_shares_convict_a_dealer() -> None:
    found = rebuilt((1, 2, 4, 5, 6), lying(0))  # its seed is the first secret in every message
    assert found.unfit == {0: (1, (1, 2, 4, 5, 6))}
    opening, messages = scene()
    advert = replace(opening.adverts[GONE], mask=bytes(32))
    shares = Shares(replace(opening, adverts={**opening.adverts, GONE: advert}))
    bad = replace(messages[0], keys=bytes(len(messages[0].keys)))
    assert shares.add_all([bad, *(messages[v] for v in ALIVE[1:])]) == {0: "client 0 gave a wrong share of client 3"}
    assert rebuild(shares).unfit == {GONE: (0, (1, 2, 4, 5, 6))}


def test_other_holders_are_tried_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    assert (unmask.SUBSETS_PER_SECRET, unmask.SUBSETS) == (16, 256)
    tried: list[list[int]] = []
    real = unmask._combine

    def watched(shares: Any, places: Any, chosen: Any) -> Any:
        tried.append([sorted(shares.by_holder)[h] for h in chosen])
        return [bytes(32)] * len(places) if len(tried) <= wrong else real(shares, places, chosen)

    monkeypatch.setattr(unmask, "_combine", watched)
    wrong = 99  # nothing ever fits
    found = rebuilt(ALIVE)  # all six gave their seeds: the key of client 3 is rebuilt
    assert tried[0] == [0, 1, 2, 4, 5]
    assert tried[1:] == [[1, 2, 4, 5, 6], [0, 2, 4, 5, 6], [0, 1, 4, 5, 6], [0, 1, 2, 5, 6], [0, 1, 2, 4, 6]]
    assert found.missing == {(GONE, 0): "client 3: its own shares do not rebuild its mask key"}
    for wrong in (1, 3):  # the second or the fourth set fits
        tried.clear()
        found = rebuilt(ALIVE)
        assert len(tried) == wrong + 1
        assert unmask._is_right(scene()[0], (GONE, 0), found.secrets[GONE, 0])
        assert found.missing == {}
        assert found.cheating_dealers.keys() == {GONE}
    wrong = 99
    monkeypatch.setattr(unmask, "SUBSETS_PER_SECRET", 2)
    tried.clear()
    rebuilt(ALIVE)
    assert len(tried) == 1 + 2
    monkeypatch.setattr(unmask, "SUBSETS", 1)
    tried.clear()
    rebuilt(ALIVE)
    assert len(tried) == 1 + 1
    tried.clear()
    rebuilt((0, 1, 2, 4, 5))  # t holders: there is no other set
    assert len(tried) == 1


def test_what_is_needed_to_open_the_groups() -> None:
    opening, _ = scene()
    assert list(unmask._needed(opening)) == [(0, 1), (1, 1), (2, 1), (3, 0), (4, 1), (5, 1), (6, 1)]
    closed = replace(opening, groups=())
    assert list(unmask._needed(closed)) == []
    assert closed.groupings_of == dict.fromkeys(range(7), ())
    hashes = [opening.dealings[v].hashes for v in opening.dealings]
    assert opening.hashes.tobytes() == b"".join(hashes) + bytes(32)
    assert opening.first_hash == {v: place * 14 for place, v in enumerate(opening.dealings)}
