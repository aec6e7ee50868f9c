"""What atoms guarantee over many rounds of updates that hardly change, and what breaks the guarantee."""

from hypothesis import given, settings
from hypothesis import strategies as st

from secagg import Policy, Schedule, audit
from secagg.exposure.audit import revealed
from secagg.exposure.schedules import keep_whole_atoms

SEED = bytes(range(32))
ATOM = 5
SCHEDULE = Schedule(name="atoms", size=10, groupings=1, atom=ATOM)
CLIENTS = range(20)


def opened_rows(missing: dict[int, set[int]], rounds: int, anonymity: int) -> list[tuple[int, ...]]:
    """The rows opened in all rounds, as the protocol opens them: weak atoms leave, then the audit decides."""
    rows = []
    for round in range(rounds):
        atoms = SCHEDULE.atoms(CLIENTS, SEED, round)
        alive = set(CLIENTS) - missing.get(round, set())
        alive = set(keep_whole_atoms(atoms, alive, anonymity))
        draw = SCHEDULE.draw(CLIENTS, SEED, round)
        policy = Policy(anonymity=anonymity)
        verdict = audit(draw, alive, policy, plan_hash=bytes(32), atoms=atoms)
        rows += [tuple(v for v in draw[r][g] if v in alive) for r, g in sorted(verdict.opened)]
    return rows


@settings(deadline=None, max_examples=40)
@given(st.dictionaries(st.integers(0, 5), st.sets(st.sampled_from(list(CLIENTS)), max_size=6)))
def test_atoms_that_take_part_whole_or_not_at_all_protect_over_all_rounds(missing: dict[int, set[int]]) -> None:
    rows = opened_rows(missing, 6, ATOM)
    atoms = SCHEDULE.atoms(CLIENTS, SEED, 0)
    for row in rows:
        for atom in atoms:
            assert set(atom) <= set(row) or not set(atom) & set(row)
    if rows:
        assert not revealed(rows).exposed


def test_with_a_lower_anonymity_one_absence_exposes_a_client_over_rounds() -> None:
    rows = opened_rows({0: {3}}, 6, 3)
    assert revealed(rows).exposed == {3}
