"""Terms of a draft are judged before anybody is invited: with stand-ins for identities, and a seed of this process."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from secagg.agreement.agreement import Agreement
from secagg.agreement.draft import draft_terms
from secagg.agreement.floors import Floors
from secagg.simulation import agree_on, make_identities


def rehearse(document: dict[str, Any], earlier: Iterable[Agreement] = ()) -> tuple[str, ...]:
    """What sites with the default floors would object to; an error if the terms cannot be kept by anybody.

    Earlier agreements that the draft names are judged with it if all of them are given. The policy of random groups
    depends on the seed: what passes here can still be refused with the seed that is drawn.

    >>> from secagg.agreement.file import parse
    >>> draft = '''
    ... version = 2
    ... name = "study"
    ... rounds = { last = 9 }
    ... groups = { size = 3, roll_call = true }
    ... vector = { length = 2, clip = 1.0 }
    ... members = [{ name = "north" }, { name = "south" }, { name = "west" }]
    ... '''
    >>> rehearse(parse(draft))  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    secagg.errors.UsageError: roll_call: ...; set memory = 'round', ...
    """
    terms, earlier = draft_terms(document), tuple(earlier)
    identities = make_identities(terms.ids)
    known = tuple(replace(member, identity=identities[member.id].public) for member in terms.members)
    agreement = agree_on(replace(terms, members=known, beacon=None, transport=None), identities)
    if {one.fingerprint for one in earlier} == set(terms.predecessors):
        agreement.check(earlier)
    return tuple(f"{floor}: {why}" for floor, why in Floors().crossed(agreement))
