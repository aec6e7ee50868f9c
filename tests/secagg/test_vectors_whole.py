"""The vectors of agreements and whole groups hold for an implementation written only from docs/protocol-whole.md."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from typing import Any

import pytest

from tests.secagg import make_vectors, second_noise, second_whole
from tests.secagg.second_whole import H, blob, sha256
from tests.vectors.check import spliced

FOLDER = make_vectors.FOLDER
ALSO = ("agreements.json", "discrete_gaussian.json")
FILES = [path.name for path in FOLDER.glob("*.json") if not path.name.startswith("evidence")]  # it makes no evidence
NAMES = sorted(name for name in FILES if "whole" in name or name in ALSO)
Values = dict[str, Any]
NOT_SECOND = {"message", "AgreementRefused"}  # the product's field names; the audit of docs/exposure.md


class Rerun:
    """Runs the operations of a file, and those of its base, with the second implementation."""

    def __init__(self, name: str) -> None:
        case = json.loads((FOLDER / name).read_text())
        base = json.loads((FOLDER / case["base"]["file"]).read_text()) if "base" in case else {}
        self.given: Values = {}
        self.known: dict[str, bytes] = {}
        for part in (base, case):
            for key, value in part.get("given", {}).items():
                self.given[key] = {**self.given.get(key, {}), **value}
            for key, value in part.get("bytes", {}).items():
                self.known[key] = bytes.fromhex(value) if isinstance(value, str) else spliced(self.known, value)
        self.steps = [*base.get("operations", [])[: case.get("base", {}).get("first")], *case["operations"]]
        self.clients: dict[str, second_whole.Client] = {}
        self.storage: dict[int, tuple[dict[str, bytes], dict[bytes, bytes]]] = {}
        self.server: second_whole.Server | None = None
        self.compared = self.refused = 0

    def run(self) -> None:
        for step in self.steps:
            if NOT_SECOND & {step["op"], step["ok"]}:
                continue
            operation: Callable[[Values], Values] = getattr(self, step["op"].replace(".", "_").replace("-", "_"))
            if step["ok"] is True:
                assert operation(step["in"]) == step["out"], step
                self.compared += 1
            else:
                with pytest.raises(second_whole.Refused):
                    operation(step["in"])
                self.refused += 1

    def draws(self, name: str) -> second_whole.Draw:
        left = [bytes.fromhex(draw) for draw in self.given["entropy"][name]]

        def draw(count: int) -> bytes:
            assert len(left[0]) == count
            return left.pop(0)

        return draw

    def same(self, name: str, made: bytes) -> str:
        assert made == self.known[name], name
        return name

    def private(self, member: int) -> bytes:
        return bytes.fromhex(self.given["identities"][str(member)])

    def discrete_gaussian(self, v: Values) -> Values:
        stop = v["first"] + v["count"]
        return {"samples": second_noise.gaussian(bytes.fromhex(v["key"]), stop, v["sigma"])[v["first"] :]}

    # --- agreements

    def agreed(self, v: Values) -> second_whole.Agreement:
        name = v["agreement"]
        prefix = f"{name}/signature/"
        names = v.get("signatures") or {key[len(prefix) :]: key for key in self.known if key.startswith(prefix)}
        return second_whole.Agreement(self.known[name], {int(member): self.known[key] for member, key in names.items()})

    def agreement_make(self, v: Values) -> Values:
        terms, draw = second_whole.Terms(self.known[v["terms"]]), self.draws(v.get("entropy", "ceremony"))
        privates = {member: self.private(member) for member in terms.ids}
        data, signatures = second_whole.found_agreement(terms.bytes, privates, {w: draw(32) for w in terms.ids})
        for member, signature in signatures.items():
            self.same(f"{v['as']}/signature/{member}", signature)
        read = second_whole.Strict(data[4 + len(terms.bytes) + 1 :])
        commitments = read.many(lambda: (read.number("I"), read.take(32), read.take(64)))
        listed = data[4 + len(terms.bytes) + 1 :][: read.at]
        return {
            "agreement": self.same(v["as"], data),
            "commitments": {str(member): value.hex() for member, value, _ in commitments},
            "shown": H("commitments", terms.hash, listed).hex(),
        }

    def agreement(self, v: Values) -> Values:
        agreed = self.agreed(v)
        named = {"terms_hash": agreed.terms.hash, "seed": agreed.seed, "fingerprint": agreed.fingerprint}
        return {name: value.hex() for name, value in named.items()}

    def agreement_groups(self, v: Values) -> Values:
        groups = self.agreed(v).groups(v["round"])
        return {"rows": {f"{r}/{g}": list(members) for (r, g), members in groups.items()}}

    def group_mask_key(self, v: Values) -> Values:
        read = [second_whole.Strict(self.known[v[name]][2:]) for name in ("mine", "theirs")]
        (me, t, my_key, _), (mate, _, key, _) = map(second_whole.read_advert, read)
        agreed, secret = self.agreed(v), second_whole.agree(bytes.fromhex(v["private"]), key)
        context = H("context", blob(bytes.fromhex(v["data"])), blob(bytes.fromhex(v["context"])))
        bound = context + (agreed.called(t, v["present"]) if "present" in v else b"")
        mask_key = agreed.mask_key(secret, t, bound, v["grouping"], (me, my_key), (mate, key))
        named = {"context": context.hex(), "agreed": secret.hex(), "key": mask_key.hex()}
        return {**named, "sign": 1 if me < mate else -1}

    def answer_hash(self, v: Values) -> Values:
        reply = second_whole.Reply.read(self.known[v["message"]])
        rows = b"".join(sha256(vector).digest() for vector in reply.vectors)
        return {"rows": rows.hex(), "hash": self.agreed(v).answer_hash(reply.fields(), reply.vectors).hex()}

    # --- clients

    def whole_client_new(self, v: Values) -> Values:
        name, member = v.get("actor", str(v["client"])), v["client"]
        slots, spool = self.storage.setdefault(member, ({}, {}))
        agreed = self.agreed(v)
        made = second_whole.Client(member, self.private(member), agreed, self.draws(name), slots, spool)
        made.budget = tuple(v["budget"]) if "budget" in v else None
        self.clients[name] = made
        return {}

    def whole_client_copy(self, v: Values) -> Values:
        old = self.clients[v["client"]]
        stored = old.slots, old.spool, dict(old.keys), old.last, old.previous
        draw = self.draws(v["actor"])
        self.clients[v["actor"]] = second_whole.Client(old.id, old.identity, old.agreement, draw, *stored)
        return {}

    def whole_client_receive(self, v: Values) -> Values:
        client, message = self.clients[v["client"]], self.known[v["message"]]
        if message[1:2] == bytes([second_whole.HELLO]):
            return {"message": self.same(v["as"], client.hello(message))}
        answer = client.answer(message, bytes.fromhex(v["context"]), self.update(v["update"]))
        if answer is None:
            raise second_whole.Refused("no group is left")
        return {"message": self.same(v["as"], answer)}

    def update(self, name: str) -> list[list[float]]:
        parts = []
        for part in self.given["updates"][name]:
            ((kind, content),) = part.items()
            data = bytes.fromhex(content) if kind == "f64" else b""
            parts.append(list(struct.unpack(f"<{len(data) // 8}d", data)) if data else list(content))
        return parts

    def whole_client_release(self, v: Values) -> Values:
        return {"message": self.same(v["as"], self.clients[v["client"]].release(v["round"]))}

    def whole_client_memory(self, v: Values) -> Values:
        client = self.clients[v["client"]]
        return {
            "answered": client.last,
            "previous": client.previous.hex(),
            "keys": {str(t): key.hex() for t, key in client.keys.items()},
            "records": {name: content.hex() for name, content in client.slots.items()},
        }

    # --- the server

    @property
    def hub(self) -> second_whole.Server:
        assert self.server is not None
        return self.server

    def whole_server_new(self, v: Values) -> Values:
        self.server = second_whole.Server(self.agreed(v))
        return {}

    def whole_server_hello(self, v: Values) -> Values:
        return self.sent(v["as"], self.hub.hello(v["round"]))

    def whole_server_begin(self, v: Values) -> Values:
        data, context = bytes.fromhex(v["data"]), bytes.fromhex(v["context"])
        return self.sent(v["as"], self.hub.begin(v["round"], data, context, v.get("present")))

    def sent(self, name: str, made: dict[int, bytes]) -> Values:
        same = len(set(made.values())) == 1
        return {"messages": {str(w): self.same(name if same else f"{name}/{w}", data) for w, data in made.items()}}

    def whole_server_receive(self, v: Values) -> Values:
        return {"outcome": "dropped" if self.hub.receive(v["client"], self.known[v["message"]]) else "taken"}

    def whole_server_close(self, _: Values) -> Values:
        server = self.hub
        sums, t, agreed = server.open(), server.round, server.agreement
        assert t is not None
        return {
            "rows": {f"{r}/{g}": self.opened(server.complete[r, g], total) for (r, g), total in sums.items()},
            "lost": [f"{r}/{g}" for r, g in agreed.groups(t) if (r, g) not in sums],
            "answers": {
                str(w): agreed.answer_hash(reply.fields(), reply.vectors).hex()
                for w, reply in sorted(server.answers.items())
            },
            "blamed": sorted(server.convicted),
            "skipped": len(sums) < agreed.terms.least_groups,
        }

    def opened(self, members: list[int], total: list[int]) -> Values:
        agreed, sums, means = self.hub.agreement, list[Any](), []
        for part, values in zip(agreed.terms.segments, agreed.decode(total), strict=True):
            sums.append(struct.pack(f"<{len(values)}d", *values).hex() if part.floats else values)
            mean = agreed.mean(part, values, members)
            means.append(struct.pack(f"<{len(mean)}d", *mean).hex())
        shown = struct.pack(f"<{len(total)}I", *total).hex()
        return {"members": members, "total": shown, "sum": sums, "mean": means}


@pytest.mark.parametrize("name", NAMES)
def test_an_implementation_written_from_the_document_passes_the_vector(name: str) -> None:
    rerun = Rerun(name)
    rerun.run()
    assert rerun.compared
    if name.startswith("bad_"):
        dropped = [step for step in rerun.steps if (step.get("out") or {}).get("outcome") == "dropped"]
        assert rerun.refused or dropped or "too_large" in name
