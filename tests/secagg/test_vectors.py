"""The test vectors hold for this implementation and for one written only from docs/protocol.md."""

import ast
import json
import shutil
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from secagg import errors
from tests.secagg import make_vectors, second
from tests.vectors import check
from tests.vectors.check import OPERATIONS

FOLDER = make_vectors.FOLDER
FILES = sorted(path.name for path in FOLDER.glob("*.json"))
RUNS = [name for name in FILES if name.startswith("n") and name[1].isdigit()]


def case_of(name: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((FOLDER / name).read_text())
    return content


def test_the_generator_reproduces_every_vector() -> None:
    made = make_vectors.texts()
    assert sorted(made) == FILES
    for name, text in made.items():
        assert (FOLDER / name).read_text("ascii") == text, f"python -m tests.secagg.make_vectors changes {name}"


def test_the_vectors_are_small() -> None:
    # Of these, noise has 106,000 bytes and evidence 175,000.
    assert sum((FOLDER / name).stat().st_size for name in FILES) < 2_350_000


@pytest.mark.parametrize("name", FILES)
def test_the_vector_holds(name: str) -> None:
    assert check.check_file(FOLDER / name) == len(case_of(name)["operations"])


def test_every_operation_and_every_error_has_a_vector() -> None:
    steps = [step for name in FILES for step in case_of(name)["operations"]]
    assert {step["op"] for step in steps} == set(OPERATIONS)
    raised = {step["ok"] for step in steps} - {True}
    classes = {
        name for name, value in vars(errors).items() if isinstance(value, type) and not issubclass(value, Warning)
    }
    refused_seeds = {"NotCommitted", "NotRevealed", "WronglyRevealed"}
    assert raised == classes - {"SecAggError", "JournalError"} | refused_seeds  # storage is outside the vectors


def test_a_file_named_bad_contains_a_refusal() -> None:
    for name in FILES:
        steps = case_of(name)["operations"]
        refused = [step for step in steps if step["ok"] is not True]
        ignored = [step for step in steps if (step.get("out") or {}).get("outcome") == "dropped"]
        disputed = name in ("bad_reflected_box.json", "bad_noncanonical_share.json")
        if name.startswith("bad_"):
            assert refused or ignored or disputed, name


def changed(text: str) -> Iterator[str]:
    """Copies of a case, each with one expected value changed."""
    case = json.loads(text)
    for place, step in enumerate(case["operations"]):
        for name in ("ok", "culprit"):
            if name in step:
                yield json.dumps(_with(case, place, name, "NobodysError"))
        if isinstance(step.get("out"), dict) and step["out"]:
            key = sorted(step["out"])[0]
            yield json.dumps(_with(case, place, "out", {**step["out"], key: "?"}))
            yield json.dumps(_with(case, place, "out", {**step["out"], "more": 1}))


def _with(case: dict[str, Any], place: int, name: str, value: Any) -> dict[str, Any]:
    steps = list(case["operations"])
    steps[place] = {**steps[place], name: value}
    return {**case, "operations": steps}


@pytest.mark.parametrize("name", ["box.json", "bad_box.json", "bad_ed25519.json", "n5_too_few.json"])
def test_a_vector_with_another_outcome_fails(name: str, tmp_path: Path) -> None:
    shutil.copy(FOLDER / "n5_flat.json", tmp_path)
    for text in changed((FOLDER / name).read_text()):
        (tmp_path / name).write_text(text)
        with pytest.raises(check.Mismatch, match=r"operation \d+ .*should be"):
            check.check_file(tmp_path / name)


def broken_bytes(case: dict[str, Any]) -> None:
    text = case["bytes"]["dealing/3"]
    case["bytes"]["dealing/3"] = text[:-2] + f"{int(text[-2:], 16) ^ 1:02x}"


CHANGES: dict[str, Callable[[dict[str, Any]], object]] = {
    "other bytes": broken_bytes,
    "another draw": lambda case: case["given"]["entropy"]["3"].__setitem__(4, "00" * 99),
    "a draw of another size": lambda case: case["given"]["entropy"]["3"].__setitem__(4, "00"),
    "a draw too many": lambda case: case["given"]["entropy"]["3"].append("00"),
    "no bytes": lambda case: case["bytes"].pop("dealing/3"),
    "an unknown operation": lambda case: case["operations"][3].update(op="client.old"),
    "another format": lambda case: case.update(format="secagg vectors 1"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_run_with_other_bytes_or_randomness_fails(change: str, tmp_path: Path) -> None:
    case = case_of("n5_flat.json")
    CHANGES[change](case)
    (tmp_path / "n5_flat.json").write_text(json.dumps(case))
    ((name, ok, detail),) = check.check(tmp_path)
    assert (name, ok) == ("n5_flat.json", False)
    assert detail


def test_run_prints_a_line_per_file_and_returns_0(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("box.json", "bad_box.json"):
        shutil.copy(FOLDER / name, tmp_path)
    assert check.run(tmp_path, json=False) == 0
    assert [line.split()[:2] for line in capsys.readouterr().out.splitlines()] == [
        ["ok", "bad_box.json"],
        ["ok", "box.json"],
    ]
    assert check.run(tmp_path, json=True) == 0
    report = json.loads(capsys.readouterr().out)
    assert [(entry["file"], entry["ok"]) for entry in report] == [("bad_box.json", True), ("box.json", True)]


def test_run_returns_1_and_says_what_differs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    case = case_of("box.json")
    case["operations"][0]["out"]["key"] = "00" * 32
    (tmp_path / "box.json").write_text(json.dumps(case))
    (tmp_path / "not_json.json").write_text("{")
    assert check.run(tmp_path, json=False) == 1
    first, second_line = capsys.readouterr().out.splitlines()
    assert first.startswith("FAIL box.json")
    assert "operation 0 (box.seal): out.key should be '0000" in first
    assert second_line.startswith("FAIL not_json.json")


@pytest.mark.parametrize("where", ["missing", "empty", "box.json"])
def test_run_returns_2_with_one_line_when_there_is_nothing_to_check(
    where: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty").mkdir()
    shutil.copy(FOLDER / "box.json", tmp_path)
    assert check.run(tmp_path / where, json=False) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert len(shown.err.splitlines()) == 1


def known_bytes(name: str) -> dict[str, bytes | None]:
    """The byte strings of a file and its base; None where the file has only a hash."""
    case, known = case_of(name), dict[str, bytes | None]()
    if "base" in case:
        known = known_bytes(case["base"]["file"])
    for key, value in case["bytes"].items():
        if isinstance(value, dict) and "of" in value:
            source = known[value["of"]]
            assert source is not None
            end = source[value["at"] + value["drop"] :]
            known[key] = source[: value["at"]] + bytes.fromhex(value["put"]) + end
        else:
            known[key] = bytes.fromhex(value) if isinstance(value, str) else None
    return known


class Rerun:
    """Repeats the operations of a run with the second implementation."""

    def __init__(self, name: str) -> None:
        case = case_of(name)
        base = case_of(case["base"]["file"]) if "base" in case else {"operations": [], "given": {}}
        self.given = {**base["given"], **{k: v for k, v in case["given"].items() if k != "entropy"}}
        self.given["entropy"] = {**base["given"].get("entropy", {}), **case["given"]["entropy"]}
        self.steps = base["operations"][: case.get("base", {}).get("first", 0)] + case["operations"]
        self.known = known_bytes(name)
        plan = self.known["plan"]
        assert plan is not None
        self.plan = second.Plan(plan)
        self.server = second.Server(self.plan)
        self.clients: dict[str, second.Client] = {}
        self.compared = 0

    def run(self) -> None:
        for step in self.steps:
            role, _, what = step["op"].partition(".")
            handler = getattr(self, f"_{role}_{what}", None)
            if handler is not None and step["ok"] is True:
                handler(step["in"], step["out"])

    def same(self, name: str, made: bytes) -> None:
        wanted = self.known[name]
        if wanted is None:
            self.known[name] = made  # the file has only its hash, which `python -m tests.vectors` compares
            return
        assert made == wanted, name
        self.compared += 1

    def _client_new(self, given: dict[str, Any], _: Any) -> None:
        client = str(given["client"])
        draws = iter(self.given["entropy"][client])

        def draw(count: int) -> bytes:
            drawn = bytes.fromhex(next(draws))
            assert len(drawn) == count
            return drawn

        identity = bytes.fromhex(self.given["identities"][client])
        self.clients[client] = second.Client(given["client"], identity, self.plan, draw)

    def _client_hello(self, given: dict[str, Any], _: Any) -> None:
        self.same(given["as"], self.clients[given["client"]].hello())

    def _client_receive(self, given: dict[str, Any], _: Any) -> None:
        client, message = self.clients[given["client"]], self.known[given["message"]]
        assert message is not None
        answers: dict[int, Callable[[bytes], bytes]] = {
            2: client.deal,
            4: lambda data: client.masked(data, self._update(given["update"])),
            6: client.endorse,
            8: client.unmask,
        }
        self.same(given["as"], answers[message[1]](message))

    def _update(self, name: str) -> list[list[float]]:
        given, parts = self.given["updates"][name], []
        for part in given if isinstance(given, list) else [given]:
            ((kind, content),) = part.items()
            data = b"" if kind == "i64" else bytes.fromhex(content)
            parts.append(list(content) if kind == "i64" else list(struct.unpack(f"<{len(data) // 8}d", data)))
        return parts

    def _server_receive(self, given: dict[str, Any], out: dict[str, str]) -> None:
        data = self.known[given["message"]]
        assert data is not None
        if out["outcome"] == "counted":
            self.server.take(given["client"], data)

    def _server_advance(self, given: dict[str, Any], out: dict[str, Any]) -> None:
        kind = given["as"].rpartition("/")[2]
        for client, name in out["messages"].items():
            make: dict[str, Callable[[int], bytes]] = {
                "keylist": self.server.key_list,
                "bundle": self.server.bundle,
                "survivors": lambda _: self.server.survivors(),
                "signatures": self.server.signatures,
            }
            made = make[kind](int(client))
            self.same(name, made)

    def _server_result(self, _: Any, out: dict[str, Any]) -> None:
        totals = self.server.totals()
        assert {f"{r}/{g}" for r, g in totals} == set(out["rows"])
        for (r, g), total in totals.items():
            shown = out["rows"][f"{r}/{g}"]
            assert struct.pack(f"<{len(total)}I", *total).hex() == shown["total"]
            assert [v for v in self.plan.groupings[r][g] if v in self.server.summed] == shown["members"]


HONEST = [name for name in RUNS if name != "n5_cheating_dealer.json"]


@pytest.mark.parametrize("name", HONEST)
def test_an_implementation_written_from_the_document_makes_the_same_messages(name: str) -> None:
    rerun = Rerun(name)
    rerun.run()
    assert rerun.compared >= 2 * len(rerun.plan.ids)


@pytest.mark.parametrize("name", ["audits.json", "bad_exposing_rows.json"])
def test_an_audit_in_fractions_written_from_the_document_allows_the_same_sums(name: str) -> None:
    known = known_bytes(name)
    steps = [step for step in case_of(name)["operations"] if step["op"] == "audit"]
    assert steps
    for step in steps:
        plan = known[step["in"]["plan"]]
        assert plan is not None
        allowed = second.audit(second.Plan(plan), set(step["in"]["survivors"]))
        assert [f"{r}/{g}" for r, g in allowed] == step["out"]["rows"]


def test_the_training_seed_is_hashed_as_documented() -> None:
    for step in case_of("training_seed.json")["operations"]:
        if step["ok"] is not True:
            continue
        given, training_id = step["in"], bytes.fromhex(step["in"]["training_id"])
        roster = b"".join(v.to_bytes(4, "big") for v in given.get("ids", ()))
        if step["op"] == "seed.contribution":
            owner, drawn = given["client"].to_bytes(4, "big"), bytes.fromhex(given["contribution"])
            made = second.framed("seed-contribution-commitment", training_id, roster, owner, drawn)
            assert made.hex() == step["out"]["commitment"]
        elif step["op"] == "seed":
            drawn = [bytes.fromhex(given["contributions"][str(v)]) for v in given["ids"]]
            assert second.framed("training-seed", training_id, roster, *drawn).hex() == step["out"]["seed"]
        else:
            pulse = (given["name"].encode(), str(given["pulse"]).encode(), bytes.fromhex(given["value"]))
            assert second.framed("beacon-seed", training_id, *pulse).hex() == step["out"]["seed"]


def test_the_second_implementation_imports_nothing_of_the_first() -> None:
    tree = ast.parse(Path(second.__file__).read_text())
    modules = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    modules |= {name.name for node in ast.walk(tree) if isinstance(node, ast.Import) for name in node.names}
    assert not any(str(module).startswith(("secagg", "tests", "numpy")) for module in modules)
