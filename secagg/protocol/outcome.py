"""The end of a run on the server: who is disputed, what can be unmasked, and the result."""

from collections import Counter
from dataclasses import replace

from secagg.exposure.audit import Verdict
from secagg.protocol.records import Found, run_record
from secagg.protocol.relations import possible_sums
from secagg.protocol.result import BROKEN_ATOM, Dropout, GroupSum, Result, Stage
from secagg.protocol.server_state import ServerMemory
from secagg.protocol.unmask import AgreedOpening, Shares, rebuild, remove_masks
from secagg.protocol.views import Views
from secagg.types import ClientId, Group, GroupId


def doomed_groups(memory: ServerMemory, views: Views) -> dict[GroupId, tuple[ClientId, ...]]:
    """Groups whose sums would keep a mask: a dealer has vanished, and too few survivors hold a good share from it."""
    plan, survivors = memory.plan, memory.survivors
    doomed: dict[GroupId, tuple[ClientId, ...]] = {}
    for v, count in sorted(_dispute_counts(memory).items()):
        holders = sum(holder in survivors for holder in views.places(v))
        if v not in survivors and holders - count < plan.t:
            for group in plan.groups_of[v]:
                doomed[group] = (*doomed.get(group, ()), v)
    return doomed


def finish(
    memory: ServerMemory, views: Views, summed: Group, verdict: Verdict, *, threads: int | None = None
) -> Result:
    """Unmask the sums of the opened groups, in place, and say what happened."""
    plan, alive = memory.plan, frozenset(summed)
    opening = AgreedOpening(
        plan=plan,
        adverts=memory.adverts,
        dealings=memory.dealings,
        holders={v: views.places(v) for v in memory.dealings},
        survivors=alive,
        groups=memory.groups,
    )
    shares, blamed = Shares(opening), _disputed(memory)
    wrong = shares.add_all(memory.unmaskings.values())
    blamed.update(wrong)
    rebuilt = rebuild(shares)
    blamed.update(rebuilt.cheating_dealers)
    lost = remove_masks(opening, rebuilt, memory.sums, threads=threads)
    members = {g: tuple(v for v in plan.group(g) if v in alive) for g in memory.groups if g not in lost}
    unmasked = {group: GroupSum(memory.sums[group], present) for group, present in members.items()}
    groups, impossible, inconsistent = possible_sums(plan.encoding, unmasked)
    broken = {v: Dropout(Stage.INPUTS, BROKEN_ATOM) for v in memory.survivors if v not in alive}
    disputes = ((dealer, survivor.id) for survivor in memory.survivors.values() for dealer in survivor.disputes)
    result = Result(
        plan=plan,
        survivors=summed,
        groups=groups,
        closed=verdict.closed,
        lost={**lost, **impossible},
        dropouts={**broken, **memory.dropouts},
        blamed=dict(sorted(blamed.items())),
        disputes=tuple(sorted(disputes)),
        inconsistent=inconsistent,  # audit: contradictions-reported
        verdict=verdict,
    )
    return replace(result, record=run_record(memory, result, Found(shares, rebuilt, wrong)).to_bytes())


def _dispute_counts(memory: ServerMemory) -> Counter[ClientId]:
    """How many survivors dispute the shares of each dealer."""
    return Counter(v for survivor in memory.survivors.values() for v in set(survivor.disputes))


def _disputed(memory: ServerMemory) -> dict[ClientId, str]:
    """Dealers that more peers dispute than may cheat: at least one of these peers is honest."""
    plan = memory.plan
    may_cheat = max(plan.assumed_colluders, plan.holders - plan.t)
    return {
        dealer: f"{count} peers hold no good share from it"
        for dealer, count in _dispute_counts(memory).items()
        if count > may_cheat  # audit: blame-needs-enough-accusers
    }
