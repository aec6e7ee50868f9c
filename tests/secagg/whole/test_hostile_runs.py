"""Generated hostile runs (`hostile.py`) have these properties, over several rounds:

- The sum of an opened group of honest members is exact, and made of the answers that they sent for this round and data.
- A group of honest members that nobody disturbed is opened.
- There are no errors except those that the package defines, and no honest member is blamed.
- A symbolic attacker that has everything honest members ever sent, and all masks towards colluders, can compute the
  sums that the theorem grants and nothing else.
"""

import pytest

from secagg.whole import MemoryStore, transcript
from secagg.whole import client as whole_client
from tests.secagg.whole.hostile import play, play_all

FAST, LONG, BLOCK = 300, 10_000, 500


@pytest.mark.parametrize("first", range(0, FAST, 100))
def test_hostile_runs_open_exact_sums_blame_nobody_honest_and_show_only_sums(first: int) -> None:
    totals = play_all(range(first, first + 100))
    assert totals["must_open"] > 20
    assert totals["opened"] > totals["must_open"]
    for kind in ("lost", "refused", "blamed", "learned", "restarts", "releases", "resends", "called"):
        assert totals[kind] > 0, kind


@pytest.mark.long
@pytest.mark.parametrize("first", range(0, LONG, BLOCK))
def test_ten_thousand_hostile_runs(first: int) -> None:
    totals = play_all(range(first, first + BLOCK))
    print(totals)
    assert totals["runs"] == BLOCK


# --- the runs find a client that misses a check ------------------------------------------------------------------


def finds(first: int = 0, count: int = 300) -> bool:
    """Whether one of the runs fails because the attacker computes too much, or a sum is wrong."""
    for seed in range(first, first + count):
        try:
            play(seed)
        except AssertionError:
            return True
    return False


def test_runs_find_a_key_without_its_context(monkeypatch: pytest.MonkeyPatch) -> None:
    infos = transcript.mask_infos
    monkeypatch.setattr(transcript, "mask_infos", lambda f, t, _, *rest: infos(f, t, bytes(32), *rest))
    assert finds()


def test_runs_find_clients_that_answer_without_an_exclusive_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    keep = MemoryStore.keep

    def forgetful(store: MemoryStore, pending: whole_client.Pending) -> bytes | None:
        keep(store, pending)
        store._journal = type(store._journal)()  # type: ignore[misc]
        return None

    monkeypatch.setattr(MemoryStore, "keep", forgetful)
    assert finds()


def test_runs_find_a_key_without_the_members_present(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transcript, "present_hash", lambda *_: b"")
    assert finds()


def test_runs_find_clients_that_do_not_check_who_is_present(monkeypatch: pytest.MonkeyPatch) -> None:
    def believed(agreement: object, message: whole_client.Round) -> tuple[int, ...]:
        return tuple(advert.sender for advert in message.adverts)

    monkeypatch.setattr(whole_client, "check_present", believed)
    assert finds()


def test_runs_find_clients_that_do_not_check_releases(monkeypatch: pytest.MonkeyPatch) -> None:
    def believed(agreement: object, me: int, message: whole_client.Round) -> frozenset[int]:
        return frozenset(release.sender for release in message.releases)

    monkeypatch.setattr(whole_client, "check_releases", believed)
    assert finds()
