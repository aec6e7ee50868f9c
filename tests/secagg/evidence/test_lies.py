"""Evidence as a malicious hub would write it. What the file cannot show, docs/evidence.md says; the rest is found.

The hub has every message that it ever got, and members of its own if it could place them. Lies that only a journal
finds, or nobody, are here too, so that the documents stay true.
"""

import base64
import json
from dataclasses import replace
from pathlib import Path

import pytest

from secagg import FileJournal, Identity
from secagg.agreement.audit import audit_round, audit_training
from secagg.cli.main import main
from secagg.evidence import (
    Absence,
    Evidence,
    LostGroup,
    OpenedSum,
    RoundRecord,
    check_envelope,
    envelope,
    interrupted,
    verify,
)
from secagg.evidence import statement as statement_module
from secagg.simulation import WholeRun, make_agreement
from secagg.whole import FileStore
from tests.secagg.drbg import Drbg
from tests.secagg.evidence import second, second_runs
from tests.secagg.evidence.common import agreed, changed, honest, in_round
from tests.secagg.evidence.run_common import agreed as agreed_runs
from tests.secagg.evidence.run_common import changed as changed_run
from tests.secagg.evidence.run_common import evidence_of, played


def complete(rounds: int = 3) -> bytes:
    """A training in which everybody answers."""
    agreement, identities = agreed("fixed")
    run = WholeRun(agreement, identities)
    for t in range(rounds):
        run.round(t, {v: [v, t, 1] for v in range(6)})
    return run.evidence()


def test_1_a_false_hash_of_a_sum_is_the_hubs_word() -> None:
    """Whoever has the sum can compare; the file alone cannot show it."""
    data = in_round(
        complete(), 0, lambda record: replace(record, opened=(OpenedSum(0, 0, bytes(32)), *record.opened[1:]))
    )
    assert verify(data).holds


def test_2_an_opened_group_that_is_called_lost_reveals_nothing_more() -> None:
    def lose(record: object) -> object:
        assert hasattr(record, "opened")
        first, *rest = record.opened
        return replace(record, opened=tuple(rest), lost=(LostGroup(*first.group, b"it failed"),))  # type: ignore[type-var]

    assert verify(in_round(complete(), 0, lose)).holds  # type: ignore[arg-type]


def test_3_an_answer_that_is_called_late_is_a_note_and_in_its_clients_journal(tmp_path: Path) -> None:
    """A round is replaced by one in which nobody answered: the gap in the chains is told, and a journal contradicts."""
    agreement, identities = agreed("fixed")
    run = WholeRun(agreement, identities, store=FileStore(tmp_path / "state", FileJournal(tmp_path / "journal")))
    for t in range(3):
        run.round(t, {v: [v, t, 1] for v in range(6)})
    whole = Evidence.from_bytes(run.evidence())
    empty = RoundRecord.from_bytes(interrupted(agreement, 1, "nobody answered"))
    data = replace(whole, rounds=(whole.rounds[0], empty, whole.rounds[2])).to_bytes()
    report = verify(data)
    assert report.holds
    assert "6 answers follow an answer that did not arrive in time" in "".join(report.notes)
    told = verify(data, journal=tmp_path / "journal").notes
    assert "round 1: client 0 answered it, and the hub says: nobody answered" in told
    left_out = replace(whole, rounds=(whole.rounds[0], whole.rounds[2])).to_bytes()
    assert not verify(left_out).holds


def test_4_clients_of_the_hub_sign_whatever_it_wants() -> None:
    """An agreement of members that one hub made up: only people can compare identities and the fingerprint."""
    agreement, identities = make_agreement(members=6, size=3, length=2, bound=9)
    run = WholeRun(agreement, identities)
    run.round(0, {v: [0, 0] for v in range(6)})
    report = verify(run.evidence())
    assert report.holds
    assert report.fingerprint == agreement.fingerprint.hex()


def test_5_two_files_of_one_training_can_both_hold() -> None:
    """A hub shows a longer file to one auditor than to another: compare digests, or use a journal."""
    data = complete()
    short = changed(data, lambda one: replace(one, rounds=one.rounds[:-1]))
    assert verify(data).holds
    assert verify(short).holds


def test_6_an_honest_client_in_dispute_is_not_convicted() -> None:
    agreement = agreed_runs("groups")
    report = verify(evidence_of(agreement, [played(agreement, cheats={1: "corrupts every box"})]))
    assert not report.blamed


def test_7_blame_in_words_is_told_as_words() -> None:
    agreement = agreed_runs("groups")
    data = evidence_of(agreement, [played(agreement)])
    worded = changed_run(data, 0, lambda record: replace(record, unproved=(Absence(3, b"it is a cheater"),)))
    report = verify(worded)
    assert report.holds
    assert not report.blamed
    assert "the hub blames client 3, without a proof here: it is a cheater" in "".join(report.notes)
    assert second_runs.check(worded) == ""


@pytest.mark.parametrize(
    "text",
    [b"x\nThe evidence holds.", b"\x1b[8mx", "x\u202ey".encode(), b"x\r"],
    ids=["a new line", "an escape", "backwards", "a return"],
)
def test_8_a_reason_cannot_write_a_verdict_on_the_screen(
    text: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    agreement = agreed_runs("groups")
    data = evidence_of(agreement, [played(agreement)])
    (tmp_path / "evidence").write_bytes(data)
    assert main(["verify", str(tmp_path / "evidence")]) == 0
    told = capsys.readouterr().out
    assert "The evidence holds." in told
    assert "what the opened sums reveal, in the worst run: T = 3 (exact); highest leverage 0.333" in told
    worded = changed_run(data, 0, lambda record: replace(record, unproved=(Absence(3, text),)))
    (tmp_path / "evidence").write_bytes(worded)
    assert main(["verify", str(tmp_path / "evidence")]) == 1
    shown = capsys.readouterr().out
    assert "not printable" in shown
    assert "The evidence holds." not in shown.splitlines()
    assert all(line.isprintable() for line in shown.splitlines())
    assert second_runs.check(worded)


def test_8_the_server_writes_reasons_that_are_printable() -> None:
    agreement, _ = agreed("fixed")
    record = interrupted(agreement, 1, "stopped\n\x1b[2Kby a signal")
    assert b"stopped??[2Kby a signal" in record


def one_group_a_round(rounds: int = 12) -> Evidence:
    """Twelve members in four fixed groups, one of which is drawn in each round."""
    agreement, identities = make_agreement(
        members=12, size=3, sample=3, length=1, bound=9, rounds=rounds, entropy=Drbg(b"one group a round")
    )
    run = WholeRun(agreement, identities)
    for t in range(rounds):
        run.round(t, {v: [1] for v in range(12)})
    return Evidence.from_bytes(run.evidence())


def test_9_absence_from_a_round_that_a_client_is_not_drawn_for_does_not_hide_another_round() -> None:
    whole = one_group_a_round()
    drawn = [{answer.sender for answer in record.answers} for record in whole.rounds]
    place = next(t for t in range(1, 11) if drawn[t - 1] != drawn[t] and drawn[t] in drawn[t + 1 :])
    absent = tuple(Absence(client, b"it did not come") for client in sorted(drawn[place]))
    before = replace(whole.rounds[place - 1], absent=absent)
    told = replace(whole, rounds=(*whole.rounds[: place - 1], before, *whole.rounds[place:])).to_bytes()
    assert verify(told).holds  # a hub may say so, for example of a client that sent something strange
    assert not second.check(told)
    data = replace(whole, rounds=(*whole.rounds[: place - 1], before, *whole.rounds[place + 1 :])).to_bytes()
    assert "follows an answer that is not here" in "".join(verify(data).problems)
    assert second.check(data) == "answers are chained"


def test_10_a_round_whose_members_never_answer_again_can_be_left_out_and_the_gap_is_told() -> None:
    whole = one_group_a_round()
    drawn = [{answer.sender for answer in record.answers} for record in whole.rounds]
    place = next(t for t in range(1, 11) if drawn[t] not in drawn[t + 1 :])
    data = replace(whole, rounds=(*whole.rounds[:place], *whole.rounds[place + 1 :])).to_bytes()
    report = verify(data)
    assert report.holds
    told = f"rounds are missing between others: {place}; whoever answered them has not answered since"
    assert told in "".join(report.notes)
    assert not any("missing between" in note for note in verify(whole.to_bytes()).notes)


def test_10_a_round_after_one_in_which_all_are_called_late_can_be_left_out_and_both_are_told() -> None:
    """Everybody answered round 1 and has answered since."""
    whole = Evidence.from_bytes(complete())
    late = RoundRecord.from_bytes(interrupted(whole.agreement, 0, "they were late"))
    report = verify(replace(whole, rounds=(late, whole.rounds[2])).to_bytes())
    assert report.holds
    told = "".join(report.notes)
    assert "rounds are missing between others: 1; " in told
    assert "or counts as one whose answer did not arrive in time" in told
    assert "6 answers follow an answer that did not arrive in time" in told


def test_11_a_predecessor_that_is_not_given_does_not_make_the_exposure_look_smaller() -> None:
    """Over all rounds, and not for a single one, if that is what the agreement promises."""
    reports = []
    for earlier in ((), (bytes(32),)):
        agreement, identities = make_agreement(
            members=12, size=6, schedule="atoms", atom=3, length=1, bound=9, rounds=6, predecessors=earlier
        )
        signatures = {v: agreement.sign(v, identities[v]) for v in identities}
        reports.append(verify(Evidence(agreement=agreement, signatures=signatures).to_bytes()))
    alone, named = reports
    assert audit_round(agreement).anonymity.lower == 6
    assert alone.anonymity == named.anonymity == str(audit_training(agreement, None).anonymity)
    assert audit_training(agreement, None).anonymity.lower == 3
    assert "--earlier judges them" in "".join(named.notes)


def test_12_what_the_evidence_does_not_show_is_told_before_the_words_of_a_hub(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A hub may blame everybody in every round, at any length; on a screen that must not displace the rest."""
    agreement = agreed_runs("groups")
    data = evidence_of(agreement, [played(agreement, t) for t in range(4)])
    words = b"it is a cheater" + b" " * 2000
    for place in range(4):
        blamed = tuple(Absence(client, words) for client in sorted(agreement.terms.ids))
        data = changed_run(data, place, lambda record, blamed=blamed: replace(record, unproved=blamed))
    (tmp_path / "evidence").write_bytes(data)
    assert main(["verify", str(tmp_path / "evidence")]) == 0
    shown = capsys.readouterr().out
    count = 4 * len(agreement.terms.ids)
    limits = [note for note in verify(data).notes if not note.startswith("round ")]
    assert count > 20
    assert len(verify(data).notes) == count + len(limits)
    assert all(f"note: {note}" in shown for note in limits)
    assert f"note: {count + len(limits) - 20} more notes on single rounds (--json lists all)" in shown
    assert max(map(len, shown.splitlines())) < 500


@pytest.mark.parametrize("text", ["[" * 100_000, '{"payload":' * 50_000], ids=["lists", "tables"])
def test_a_statement_that_is_nested_without_end_is_no_statement(text: str) -> None:
    assert check_envelope(text, b"", bytes(32)) == check_envelope("{}", b"", bytes(32))


def test_a_signed_statement_that_says_something_else_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """9. The hub signs that a client was convicted, or that there were more rounds."""
    data, hub = honest("fixed"), Identity.generate()
    true = statement_module._statement

    def lying(*arguments: object) -> dict[str, object]:
        found = true(*arguments)  # type: ignore[arg-type]
        found["predicate"] |= {"blamed": {"2": "it cheated"}}
        return found

    monkeypatch.setattr(statement_module, "_statement", lying)
    signed = envelope(data, hub)
    monkeypatch.setattr(statement_module, "_statement", true)
    assert check_envelope(signed, data, hub.public) == [
        "the statement says something else than the evidence about: blamed"
    ]
    payload = json.loads(base64.b64decode(json.loads(envelope(data, hub))["payload"]))
    assert payload["predicate"]["blamed"] == {}


def test_a_false_contradiction_names_opened_groups_at_least() -> None:
    """10. Which sums contradict each other is the hub's word; it must be about groups that were opened."""
    data = complete()
    assert verify(in_round(data, 0, lambda record: replace(record, inconsistent=(((0, 0), (0, 1)),)))).holds
    strange = in_round(data, 0, lambda record: replace(record, inconsistent=(((3, 0),),)))
    assert "inconsistent that was not opened" in "".join(verify(strange).problems)
    assert second.check(strange)
