"""A hub and one colluding client try to hide a sum, and to convict a client that did nothing wrong."""

from __future__ import annotations

from dataclasses import replace

from secagg.agreement.agreement import Agreement
from secagg.agreement.plan import Plan
from secagg.evidence import Evidence, LostGroup, RunRecord, run_statements, verify
from secagg.evidence.run_check import _Run
from secagg.evidence.runs import EarlySignature, ShownDealing, ShownShare, WrongDealing, WrongUnmasking
from secagg.protocol.messages import Unmasking
from tests.secagg.cluster import Cluster, identity, make_inputs
from tests.secagg.evidence import second_runs
from tests.secagg.evidence.run_common import agreed, changed, evidence_of


def played() -> tuple[Agreement, Plan, Cluster, bytes]:
    agreement = agreed("groups")
    plan = agreement.plan(agreement.terms.first_round, 0, b"model 0")
    cluster = Cluster(plan, make_inputs(plan), agreed=agreement, seed=b"framed").start()
    return agreement, plan, cluster, evidence_of(agreement, [cluster.finish()])


def hidden(plan: Plan, record: RunRecord, colluder: int) -> RunRecord:
    """The record with one group only: one client signs that for everybody."""
    kept = record.groups(plan)[:1]
    view = _Run(plan, record).view(colluder)
    signature = identity(colluder).sign(run_statements.opening(plan, view, record.inputs, kept))
    return replace(
        record,
        closed=record.groups(plan)[1:],
        openings=tuple(replace(one, signature=signature) for one in record.openings),
        sums=record.sums[:1],
        lost=tuple(LostGroup(*group, b"it is lost") for group in record.groups(plan)[1:]),
    )


def test_one_colluder_cannot_sign_an_opening_for_the_others() -> None:
    """Whether its own opening is the first or the last with this signature."""
    _, plan, _, data = played()
    assert verify(data, threads=1).holds
    for colluder in (min(plan.ids), max(plan.ids)):
        lie = changed(data, 0, lambda record, colluder=colluder: hidden(plan, record, colluder))  # type: ignore[misc]
        wrong = [f"round 5: the signature of client {v} on its opening is wrong" for v in plan.ids if v != colluder]
        assert list(verify(lie, threads=1).problems) == wrong
        assert second_runs.check(lie)


def test_an_honest_client_is_not_convicted_with_an_opening_that_it_did_not_sign() -> None:
    """With fewer groups, an honest client has given more seeds than were asked for."""
    _, plan, cluster, data = played()
    kept = Evidence.from_bytes(data).runs[0].groups(plan)[:1]
    victim = next(v for v in plan.ids if v != max(plan.ids) and not any(g in kept for g in plan.groups_of[v]))
    gave = next(one for one in cluster.sent[victim] if isinstance(one, Unmasking))
    proof = WrongUnmasking(victim, gave.own, gave.seed_owners, gave.seeds, gave.key_owners, gave.keys, ())
    lie = changed(data, 0, lambda record: replace(hidden(plan, record, max(plan.ids)), wrong=(proof,)))
    report = verify(lie, threads=1)
    assert not report.holds
    assert report.blamed == {}
    assert second_runs.check(lie)


def test_a_dealing_that_nobody_signed_convicts_nobody() -> None:
    """The hub invents shares of client 1 that do not fit together, and leaves its signature out."""
    _, plan, _, data = played()
    dealer, secrets = 1, len(plan.groupings) + 1
    shares = tuple(ShownShare(v, bytes([v]) * 32 + b"\0", bytes(32)) for v in plan.peers(dealer)[: plan.t])
    leaves = b"".join(
        run_statements.share_hash(plan, dealer, one.holder, 0, one.share + one.nonce) + bytes(32) * (secrets - 1)
        for one in shares
    )

    def invented(record: RunRecord) -> RunRecord:
        shown = ShownDealing(dealer, (bytes(32),) * (secrets - 1), run_statements.root(leaves, secrets * 32))
        hash = run_statements.dealing_hash(shown)
        early = tuple(
            EarlySignature(keys.sender, identity(keys.sender).sign(run_statements.dealing(plan, keys, dealt)))
            for keys, dealt in zip(record.adverts, record.dealings, strict=True)
            if keys.sender != dealer
        )
        return RunRecord(
            round=record.round,
            cell=record.cell,
            context=record.context,
            adverts=record.adverts,
            dealings=tuple(replace(one, hash=hash) if one.sender == dealer else one for one in record.dealings),
            early=early,
            lost=tuple(LostGroup(*group, b"it is lost") for group in record.groups(plan)),
            failed=b"too few",
            shown=(shown,),
            dealt=(WrongDealing(dealer, 0, leaves, shares),),
        )

    lie = changed(data, 0, invented)
    report = verify(lie, threads=1)
    assert "client 1 must have either a masked input or an early signature" in "\n".join(report.problems)
    assert report.blamed == {}
    assert second_runs.check(lie)
