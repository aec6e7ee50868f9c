"""The agreement as an object: what it refuses, what follows from it for a round, and what it computes once."""

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from secagg import Policy, UsageError, WireError
from secagg.agreement import Agreement, Ceremony, NamedPulse, Plan, Terms, commit, reveal
from secagg.agreement import agreement as module
from secagg.agreement.origin import origin_to_bytes
from secagg.codec import Blob, to_bytes
from secagg.crypto.keys import Identity
from secagg.errors import PeerError
from secagg.simulation import make_agreement
from tests.secagg.agreement.common import beaconed
from tests.secagg.drbg import Drbg

ROUND = Policy(anonymity=2, memory="round")
REPORT = Policy(mode="report-even-if-exposed")


def agreed(**more: Any) -> tuple[Agreement, dict[int, Identity]]:
    return make_agreement(**({"members": 6, "size": 3, "length": 4, "clip": 1.0} | more))


def refused(problem: str, kind: type[Exception] = UsageError) -> Any:
    return pytest.raises(kind, match=f"^{re.escape(problem)}$")


def test_an_agreement_is_of_terms_and_the_origin_of_a_seed() -> None:
    agreement, _ = agreed()
    with refused("terms: expected Terms, got bytes"):
        Agreement(terms=b"", origin=agreement.origin)  # type: ignore[arg-type]
    with refused("terms: expected Terms, got bytes"):
        Agreement(terms=b"", origin=beaconed().origin)  # type: ignore[arg-type]
    with refused("origin: expected the origin of a seed, got bytes"):
        Agreement(terms=agreement.terms, origin=agreement.seed)  # type: ignore[arg-type]
    assert Agreement.sparse_risk == 1 / 2**40


def test_what_an_agreement_keeps_for_itself_is_no_part_of_it() -> None:
    agreement, _ = agreed()
    again = Agreement(terms=agreement.terms, origin=agreement.origin)
    agreement.groups(0)
    assert again == agreement
    assert "_" + "drawn" not in repr(agreement)
    with pytest.raises(TypeError):
        Agreement(terms=agreement.terms, origin=agreement.origin, _drawn={})  # type: ignore[call-arg]


# --- samples -------------------------------------------------------------------------------------------------------

CONNECTED = (
    "sample: 2 fixed groupings connect at least 12 members, who are drawn together, so a sample of 9 is always empty; "
    "use groupings = 1, the schedule 'atoms' or no sample"
)


def connected_terms() -> tuple[Terms, dict[int, Identity]]:
    """Terms that are fine until the seed is known: two groupings of twelve members in groups of four."""
    agreement, identities = agreed(members=12, size=4, groupings=2, policy=REPORT, entropy=Drbg(b"connected"))
    return replace(agreement.terms, sample=9), identities


def ceremony(terms: Terms, identities: dict[int, Identity]) -> Ceremony:
    secrets = {v: bytes([v]) * 32 for v in terms.ids}
    commitments = [commit(terms, v, identities[v], secrets[v]) for v in terms.ids]
    return Ceremony(commitments, [reveal(terms, v, identities[v], secrets[v], commitments) for v in terms.ids])  # type: ignore[arg-type]


def test_a_sample_that_is_always_empty_is_refused() -> None:
    terms, identities = connected_terms()
    with refused(CONNECTED):
        Agreement(terms=terms, origin=ceremony(terms, identities))
    data = to_bytes(Blob(), terms.to_bytes()) + origin_to_bytes(ceremony(terms, identities))
    with refused(f"an agreement that cannot be kept: {CONNECTED}", WireError):
        Agreement.from_bytes(data)


def test_a_sample_of_one_group_or_of_random_groups_is_not_empty() -> None:
    one, _ = agreed(sample=3)
    assert len(one.groups(0)) == 1
    drawn, _ = agreed(members=12, schedule="random", groupings=2, sample=9, policy=REPORT)
    assert len(drawn.groups(0)) == 6


# --- rounds --------------------------------------------------------------------------------------------------------


def test_a_round_is_one_of_the_agreement() -> None:
    agreement, _ = agreed(first_round=2, rounds=5)
    assert len(agreement.groups(2)) == len(agreement.groups(4)) == 2
    for wrong in (1, 5):
        with refused(f"round {wrong} is not in the agreement: it has rounds 2 to 4"):
            agreement.cells(wrong)


@pytest.mark.parametrize(("schedule", "sample", "draws"), [("fixed", 0, 1), ("fixed", 3, 4), ("random", 0, 4)])
def test_what_was_drawn_last_is_kept_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch, schedule: str, sample: int, draws: int
) -> None:
    """Fixed groups are drawn once for all rounds; others for each round, and again after another one."""
    agreement, _ = agreed(rounds=3, schedule=schedule, sample=sample, policy=ROUND)
    agreement._drawn.clear()  # what the audit has drawn
    count = counted(monkeypatch, "drawn_cells")
    for round in (0, 0, 1, 1, 2, 0):
        agreement.cells(round)
    assert count() == draws
    assert len(agreement._drawn) == 1


def counted(monkeypatch: pytest.MonkeyPatch, name: str) -> Callable[[], int]:
    calls, real = list[str](), getattr(module, name)

    def called(*given: Any, **more: Any) -> Any:
        calls.append(name)
        return real(*given, **more)

    monkeypatch.setattr(module, name, called)
    return lambda: len(calls)


def test_signatures_and_earlier_agreements_are_checked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A simulation has many clients with one agreement. Other signatures are checked again."""
    agreement, identities = agreed(members=3)
    signatures = {v: agreement.sign(v, identities[v]) for v in identities}
    checked, judged = counted(monkeypatch, "verify"), counted(monkeypatch, "check_policy")
    for _ in range(3):
        agreement.check_signatures(signatures)
        agreement.check()
    assert (checked(), judged()) == (3, 1)
    with pytest.raises(PeerError, match="client 1"):
        agreement.check_signatures(signatures | {1: bytes(64)})
    with pytest.raises(PeerError, match="client 2"):
        agreement.check_signatures({0: signatures[0], 1: signatures[1]})


def test_a_member_signs_with_its_own_identity() -> None:
    agreement, identities = agreed(members=3)
    with refused("member 1 of this agreement has another identity key"):
        agreement.sign(1, identities[0])
    with refused("client: client 7 is not on the roster"):
        agreement.sign(7, identities[0])


def test_groups_of_a_member_are_those_that_it_is_in() -> None:
    agreement, _ = agreed(members=12, schedule="random", groupings=2, sample=9, policy=REPORT)
    groups = agreement.groups(0)
    assert sorted(groups) == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]
    for client in range(12):
        found = agreement.groups_of(client, 0)
        assert len(found) in (0, 2)
        assert set(found) == {group for group, members in groups.items() if client in members}


# --- plans ---------------------------------------------------------------------------------------------------------


def survivors(**more: Any) -> Agreement:
    given = {"members": 12, "groups": "survivors", "cell": 6, "policy": ROUND, "colluders": 1, "schedule": "random"}
    return agreed(**(given | more))[0]


def test_a_plan_says_what_the_agreement_says() -> None:
    agreement = survivors(weights=[1, 2] * 6)
    terms, drawn = agreement.terms, agreement.cells(0)
    for cell in (0, 1):
        plan, clients = agreement.plan(0, cell, b"model"), drawn[cell].clients
        assert plan == Plan(
            training_id=agreement.fingerprint,
            round=0,
            roster=tuple(terms.members[client] for client in clients),
            length=4,
            schedule=terms.schedule,
            training_seed=agreement.seed,
            segments=terms.segments,
            threshold=None,
            colluders=terms.colluders_of(6),
            weights=tuple(1 + client % 2 for client in clients),
            policy=ROUND,
            context=b"model",
            drawn=drawn[cell],
            members=12,
            total_weight=18,
        )
        assert {agreement.cell_of(client, 0) for client in clients} == {cell}
    for wrong in (-1, 2):
        with refused(f"cell: expected a whole number from 0 to 1, got {wrong}"):
            agreement.plan(0, wrong, b"")


def test_a_plan_has_weights_only_if_floats_differ_in_them() -> None:
    assert survivors().plan(0, 0, b"").weights == ()
    assert survivors(clip=None, bound=9, weights=[1, 2] * 6).plan(0, 0, b"").weights == ()


def test_whole_groups_have_no_plan() -> None:
    with refused("a plan is for groups = 'survivors'; whole groups follow from `Agreement.groups`"):
        agreed()[0].plan(0, 0, b"")


def test_a_member_that_was_not_drawn_has_no_cell() -> None:
    agreement = survivors(sample=6, cell=0)
    drawn = set(agreement.cells(0)[0].clients)
    assert len(drawn) == 6
    for client in set(range(12)) - drawn:
        with refused(f"client {client} was not drawn for round 0"):
            agreement.cell_of(client, 0)


# --- a named pulse -------------------------------------------------------------------------------------------------


def test_a_named_pulse_has_a_chain_of_64_bits_and_a_minute_before_the_year_10000() -> None:
    last = 253402300800000 - 60000  # 9999-12-31 23:59
    for chain, time in ((0, 0), (2**64 - 1, last)):
        found = NamedPulse(chain=chain, time=time, key=bytes(32))
        assert (found.chain, found.time) == (chain, time)
    assert NamedPulse(chain=0, time=last, key=bytes(32)).when == "9999-12-31 23:59 UTC"
    for chain in (-1, 2**64):
        with refused(f"chain: expected the number of a chain of the beacon, got {chain}"):
            NamedPulse(chain=chain, time=0, key=bytes(32))
    for time in (-60000, last + 60000, 1, 60001, 59999):
        with refused(f"time: expected a whole minute before the year 10000, in milliseconds, got {time}"):
            NamedPulse(chain=0, time=time, key=bytes(32))
    for key in (bytes(31), bytes(33), "0" * 32):
        with refused("key: expected the SHA-256 of the beacon's public key, 32 bytes"):
            NamedPulse(chain=0, time=0, key=key)  # type: ignore[arg-type]
    for name in ("chain", "time"):
        with refused(f"{name}: expected a whole number, got 1.5"):
            NamedPulse(**({"chain": 0, "time": 0, "key": bytes(32)} | {name: 1.5}))  # type: ignore[arg-type]
