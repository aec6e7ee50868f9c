"""A client takes part in a successor only together with the earlier agreements, and its store knows them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from secagg import Identity, Policy
from secagg.agreement import Agreement, MemberFolder, successor_terms
from secagg.agreement.proposal import Proposal
from secagg.cli.steps import sign_step
from secagg.errors import AgreementRefused, UsageError
from secagg.simulation import WholeRun, agree_on, make_agreement
from secagg.whole import Client, FileStore, Hello, MemoryStore, Server, Store, Task, enrol, respond
from tests.secagg.drbg import Drbg


def made(**more: Any) -> tuple[Agreement, dict[int, Identity]]:
    settings: dict[str, Any] = {"members": 9, "size": 3, "length": 2, "bound": 9, "rounds": 2}
    return make_agreement(entropy=Drbg(b"successors"), **settings | more)


def kept(first: Agreement, identities: dict[int, Identity], leaver: int = 8, name: str = "next") -> Agreement:
    return agree_on(successor_terms(first, [leaver], name=name), identities, Drbg(name.encode()))


def client_of(agreement: Agreement, identities: dict[int, Identity], *earlier: Agreement, me: int = 0) -> Client:
    signatures = {v: agreement.sign(v, identities[v]) for v in agreement.terms.ids}
    return Client(agreement, signatures, me, identities[me], earlier=earlier)


def member_of(agreement: Agreement) -> int:
    return agreement.terms.ids[0]


def test_a_client_needs_the_earlier_agreements() -> None:
    first, identities = made()
    second = kept(first, identities)
    me = member_of(second)
    signatures = {v: second.sign(v, identities[v]) for v in second.terms.ids}
    for earlier in ((), (second,)):
        with pytest.raises(AgreementRefused, match="predecessors: the agreement names 1"):
            Client(second, signatures, me, identities[me], earlier=earlier)
    client = Client(second, signatures, me, identities[me], earlier=[first])
    with pytest.raises(AgreementRefused, match="predecessors: the agreement names 1"):
        Client.restore(client.save(), second, signatures, me, identities[me])
    Client.restore(client.save(), second, signatures, me, identities[me], earlier=[first])
    with pytest.raises(AgreementRefused, match="predecessors: the agreement names 0"):
        client_of(first, identities, second)
    with pytest.raises(UsageError, match="earlier"):
        Client(second, signatures, me, identities[me], earlier=[first.fingerprint])  # type: ignore[list-item]


def test_a_client_refuses_a_successor_that_exposes_somebody_together_with_the_first() -> None:
    """All members signed it with other software; this client does not take part all the same."""
    first, identities = made()
    terms = replace(first.terms, name="new groups", predecessors=(first.fingerprint,))
    second = agree_on(terms, identities, Drbg(b"other groups"))
    assert set(second.groups(0).values()) != set(first.groups(0).values())
    with pytest.raises(AgreementRefused, match="policy"):
        client_of(second, identities, first)


def answered(agreement: Agreement, identities: dict[int, Identity], store: Store, *earlier: Agreement) -> None:
    """The first member answers the first round; the store records it."""
    me = member_of(agreement)
    clients = {v: client_of(agreement, identities, *earlier, me=v) for v in agreement.terms.ids}
    server = Server(agreement)
    for v in server.hello(0):
        server.receive(v, clients[v].receive(Hello(agreement.fingerprint, 0)))  # type: ignore[arg-type]
    task = clients[me].receive(server.begin(0)[me])
    assert isinstance(task, Task)
    assert respond(clients[me], store, task, [1, 2])


@pytest.mark.parametrize("kind", ["memory", "file"])
def test_a_store_with_answers_under_another_agreement_is_refused(kind: str, tmp_path: Path) -> None:
    """A server that cannot get a policy past the audit proposes an agreement that names nothing."""
    first, identities = made()

    def store() -> Store:
        return shared if kind == "memory" else FileStore(tmp_path)

    shared = MemoryStore()
    answered(first, identities, store())
    answered(first, identities, FileStore(tmp_path / "other data"))
    silent = agree_on(replace(first.terms, name="silent"), identities, Drbg(b"silent"))
    with pytest.raises(AgreementRefused, match=f"answers under the agreement {first.fingerprint.hex()[:16]}"):
        answered(silent, identities, store())
    answered(silent, identities, FileStore(tmp_path / "a third kind of data"))
    second = kept(first, identities)
    answered(second, identities, store(), first)
    third = kept(second, identities, second.terms.ids[-1], "third")
    answered(third, identities, store(), first, second)
    with pytest.raises(AgreementRefused, match="answers under the agreement"):
        answered(silent, identities, store())
    skipping = agree_on(successor_terms(first, [first.terms.ids[0]], name="skipping"), identities, Drbg(b"skipping"))
    me = client_of(skipping, identities, first, me=member_of(skipping))
    old = client_of(second, identities, first, me=member_of(second))
    if me.me == old.me:  # the second agreement is recorded for this member, and not named
        with pytest.raises(AgreementRefused, match=second.fingerprint.hex()[:16]):
            enrol(me, store())
    enrol(old, store())  # an earlier agreement goes on: its successors were judged with it


def test_nothing_is_stored_or_sent_under_a_refused_agreement() -> None:
    first, identities = made()
    store = MemoryStore()
    answered(first, identities, store)
    before, spools = dict(store._journal._records), dict(store._spools)  # type: ignore[attr-defined]
    silent = agree_on(replace(first.terms, name="silent"), identities, Drbg(b"silent"))
    with pytest.raises(AgreementRefused):
        answered(silent, identities, store)
    assert (store._journal._records, store._spools) == (before, spools)  # type: ignore[attr-defined]


def test_members_of_one_process_enrol_each_for_itself() -> None:
    first, identities = made()
    other, others = made(members=3, name="other")
    shared = MemoryStore()
    enrol(client_of(first, identities), shared)
    strangers = {v: Identity.generate() for v in others}
    theirs = tuple(replace(m, identity=strangers[m.id].public) for m in other.terms.members)
    enrol(client_of(agree_on(replace(other.terms, members=theirs), strangers), strangers), shared)


def test_a_simulation_runs_a_successor_with_the_first() -> None:
    first, identities = made()
    second = kept(first, identities)
    with pytest.raises(AgreementRefused, match="predecessors"):
        WholeRun(second, identities).round(0, {v: [v, 1] for v in range(9)})
    result = WholeRun(second, identities, earlier=[first]).round(0, {v: [v, 1] for v in range(9)})
    assert {opened.members for opened in result.groups.values()} == set(second.groups(0).values())
    assert set(second.groups(0).values()) < set(first.groups(0).values())


# --- the member's folder keeps agreements --------------------------------------------------------------------


def test_a_folder_keeps_what_was_signed_and_checks_its_successors_with_it(tmp_path: Path) -> None:
    first, identities = made(policy=Policy())
    folder = MemberFolder.create(tmp_path, lambda _: identities[0].private)
    sign_step(Proposal.of(first), folder, [])
    second = kept(first, identities, first.terms.ids[-1])
    if 0 not in second.terms.ids:
        second = kept(first, identities, first.terms.ids[1])
    assert folder.earlier(second.terms) == (first,)
    sign_step(Proposal.of(second), folder, [])  # without the file of the first
    assert client_of(second, identities, *folder.earlier(second.terms)).agreement == second
    assert folder.earlier(first.terms) == ()
    strange = replace(second.terms, predecessors=(bytes(32), first.fingerprint))
    assert folder.earlier(strange) == (first,)


def test_a_damaged_or_exchanged_agreement_in_the_folder_is_refused(tmp_path: Path) -> None:
    first, identities = made()
    second = kept(first, identities)
    folder = MemberFolder.create(tmp_path)
    folder.keep_agreements([first])
    path = tmp_path / "agreements" / first.fingerprint.hex()
    for text, why in (
        ("zz", "damaged"),
        ("00", "damaged"),
        (second.to_bytes().hex(), "expected the agreement of this"),
    ):
        path.write_text(text)
        with pytest.raises(UsageError, match=why):
            folder.earlier(second.terms)
