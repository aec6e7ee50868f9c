"""Operations of agreements and whole groups (docs/protocol-whole.md)."""

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from secagg.agreement import Agreement, Terms
from secagg.agreement.origin import Ceremony, commit, commitments_hash, sign_reveal
from secagg.crypto.keys import AgreementKey, Identity
from secagg.crypto.prg import pairwise_sign
from secagg.exposure.seed import CONTRIBUTION_BYTES
from secagg.privacy import Budget
from secagg.types import ClientId
from secagg.whole import Advert, Answer, Client, MemoryStore, Resend, Server, Task, ToClient, client_state, transcript
from secagg.whole.masking import mask_keys
from secagg.whole.messages import decode, encode
from secagg.whole.store import respond
from tests.vectors.check.session import (
    Operation,
    Session,
    Values,
    WholeActor,
    doubles,
    row_name,
    update_of,
    words,
)

# --- the agreement ---------------------------------------------------------------------------------------


def _identity(s: Session, client: ClientId) -> Identity:
    return Identity.from_private(bytes.fromhex(s.given["identities"][str(client)]))


def _agreement_make(s: Session, v: Values) -> Values:
    """The whole ceremony. Contributions are the draws `ceremony`, by ascending id."""
    terms, draw = Terms.from_bytes(s.get(v["terms"])), s.entropy(v.get("entropy", "ceremony"))
    secrets = {member: draw(CONTRIBUTION_BYTES) for member in terms.ids}
    commitments = tuple(commit(terms, w, _identity(s, w), secrets[w]) for w in terms.ids)
    shown = commitments_hash(terms, commitments)
    reveals = tuple(sign_reveal(terms, w, _identity(s, w), secrets[w], shown) for w in terms.ids)
    agreement = Agreement(terms=terms, origin=Ceremony(commitments, reveals))
    for w in terms.ids:
        s.put(f"{v['as']}/signature/{w}", agreement.sign(w, _identity(s, w)))
    return {
        "agreement": s.put(v["as"], agreement.to_bytes()),
        "commitments": {str(c.member): c.commitment.hex() for c in commitments},
        "shown": shown.hex(),
    }


def signatures_of(s: Session, v: Values, agreement: Agreement) -> dict[ClientId, bytes]:
    """`signatures` has the name of each member's signature; without it, they are named after the agreement."""
    name = v["agreement"]
    names = v.get("signatures", {str(w): f"{name}/signature/{w}" for w in agreement.terms.ids})
    return {int(member): s.get(signature) for member, signature in names.items()}


def _agreement(s: Session, v: Values) -> Values:
    agreement = Agreement.from_bytes(s.get(v["agreement"]))
    agreement.check_signatures(signatures_of(s, v, agreement))
    return {
        "terms_hash": agreement.terms.hash.hex(),
        "seed": agreement.seed.hex(),
        "fingerprint": agreement.fingerprint.hex(),
    }


def _agreement_groups(s: Session, v: Values) -> Values:
    groups = Agreement.from_bytes(s.get(v["agreement"])).groups(v["round"])
    return {"rows": {row_name(group): list(members) for group, members in groups.items()}}


def _group_mask_key(s: Session, v: Values) -> Values:
    """The mask key of two members from their adverts and a private key; after a roll call, with those `present`."""
    agreement = Agreement.from_bytes(s.get(v["agreement"]))
    mine, theirs = (decode(s.get(v[name])) for name in ("mine", "theirs"))
    assert isinstance(mine, Advert)
    assert isinstance(theirs, Advert)
    agreed = AgreementKey.from_private(bytes.fromhex(v["private"])).agree(theirs.key)
    context = transcript.context_hash(bytes.fromhex(v["data"]), bytes.fromhex(v["context"]))
    pair = mine, [(v["grouping"], theirs)], {theirs.sender: agreed}
    fingerprint = agreement.fingerprint
    present = transcript.present_hash(fingerprint, mine.round, v["present"]) if "present" in v else b""
    key = mask_keys(fingerprint, mine.round, context, *pair, present)
    sign = pairwise_sign(mine.sender, theirs.sender)
    return {"context": context.hex(), "agreed": agreed.hex(), "key": key.tobytes().hex(), "sign": sign}


def _answer_hash(s: Session, v: Values) -> Values:
    answer = decode(s.get(v["message"]))
    assert isinstance(answer, Answer)
    rows = transcript.row_hashes(answer.vectors)
    fingerprint = Agreement.from_bytes(s.get(v["agreement"])).fingerprint
    return {"rows": rows.hex(), "hash": transcript.answer_hash(fingerprint, answer, rows).hex()}


# --- a client --------------------------------------------------------------------------------------------


def _client_new(s: Session, v: Values) -> Values:
    """`client` is the id, `actor` its name in this file. Actors of one client share its journal and stored answers.

    `budget` is epsilon and delta, for an agreement with noise.
    """
    name = v.get("actor", str(v["client"]))
    agreement, identity = Agreement.from_bytes(s.get(v["agreement"])), _identity(s, v["client"])
    signatures, entropy = signatures_of(s, v, agreement), s.entropy(name)
    budget = Budget(*v["budget"]) if "budget" in v else None
    machine = Client(agreement, signatures, v["client"], identity, budget=budget, entropy=entropy)
    if v["client"] not in s.stores:
        s.stores[v["client"]] = MemoryStore(s.journal(str(v["client"])))
    s.whole_actors[name] = WholeActor(machine, identity, signatures, s.stores[v["client"]])
    return {}


def _client_copy(s: Session, v: Values) -> Values:
    """Another process of the same client, restored from what it remembers now."""
    actor = s.whole_actors[v["client"]]
    machine = actor.machine
    copy = Client.restore(
        machine.save(),
        machine.agreement,
        actor.signatures,
        machine.me,
        actor.identity,
        entropy=s.entropy(v["actor"]),
    )
    s.whole_actors[v["actor"]] = WholeActor(copy, actor.identity, actor.signatures, actor.store)
    return {}


def _client_receive(s: Session, v: Values) -> Values:
    """Hello gives an Advert; Round with `update` and `context` gives an Answer, or the stored one again."""
    actor = s.whole_actors[v["client"]]
    reply = actor.machine.receive(s.get(v["message"]))
    if isinstance(reply, Task):
        segments, context = actor.machine.agreement.terms.segments, bytes.fromhex(v["context"])
        update = update_of(segments, s.given["updates"][v["update"]])
        data = b"".join(respond(actor.machine, actor.store, reply, update, context=context))
    elif isinstance(reply, Resend):
        data = bytes(actor.store.load(reply.name))
    else:
        data = encode(reply)
    return {"message": s.put(v["as"], data)}


def _client_release(s: Session, v: Values) -> Values:
    actor = s.whole_actors[v["client"]]
    pending = actor.machine.release(v["round"])
    actor.machine.stored(actor.store.keep(pending))
    return {"message": s.put(v["as"], encode(pending.message))}


def _client_memory(s: Session, v: Values) -> Values:
    machine = s.whole_actors[v["client"]].machine
    memory = client_state.restore(machine.save(), machine.me, machine.agreement.fingerprint)
    return {
        "answered": memory.answered[0] if memory.answered else None,
        "previous": memory.last.hex(),
        "keys": {str(key.round): key.private.hex() for key in memory.keys},
        "records": {name: content.hex() for name, content in s.journal(str(machine.me)).records.items()},
    }


# --- the server ------------------------------------------------------------------------------------------


def _server_new(s: Session, v: Values) -> Values:
    s.whole_server = Server(Agreement.from_bytes(s.get(v["agreement"])))
    return {}


def _server_hello(s: Session, v: Values) -> Values:
    return _sent(s, v["as"], s.whole_server.hello(v["round"]))


def _server_begin(s: Session, v: Values) -> Values:
    data, context = bytes.fromhex(v["data"]), bytes.fromhex(v["context"])
    return _sent(s, v["as"], s.whole_server.begin(v["round"], data=data, context=context, present=v.get("present")))


def _sent(s: Session, name: str, outbox: Mapping[ClientId, ToClient]) -> Values:
    """The names of the messages to send, by receiver; one name if all receive the same message."""
    made = {client: encode(message) for client, message in outbox.items()}
    same = len(set(made.values())) == 1
    return {"messages": {str(w): s.put(name if same else f"{name}/{w}", data) for w, data in made.items()}}


def _server_receive(s: Session, v: Values) -> Values:
    """`taken`, or `dropped`: the message does not count."""
    why = s.whole_server.receive(v["client"], s.get(v["message"]))
    return {"outcome": "taken" if why is None else "dropped"}


def _server_close(s: Session, _: Values) -> Values:
    result = s.whole_server.close()
    return {
        "rows": {
            row_name(group): {
                "members": list(opened.members),
                "total": words(opened.total),
                "sum": [_part(part) for part in _parts(result.sum(group))],
                "mean": [doubles(part) for part in _parts(result.mean(group))],
            }
            for group, opened in result.groups.items()
        },
        "lost": [row_name(group) for group in result.lost],
        "answers": {str(w): hash.hex() for w, hash in result.answers.items()},
        "blamed": sorted(result.blamed),
        "skipped": bool(result.skipped),
    }


def _parts(shown: Any) -> list[Any]:
    return list(shown.values()) if isinstance(shown, dict) else [shown]


def _part(part: Any) -> Any:
    values = np.ravel(part)
    return doubles(values) if values.dtype.kind == "f" else [int(value) for value in values]


OPERATIONS: Final[Mapping[str, Operation]] = {
    "agreement.make": _agreement_make,
    "agreement": _agreement,
    "agreement.groups": _agreement_groups,
    "group-mask-key": _group_mask_key,
    "answer-hash": _answer_hash,
    "whole.client.new": _client_new,
    "whole.client.copy": _client_copy,
    "whole.client.receive": _client_receive,
    "whole.client.release": _client_release,
    "whole.client.memory": _client_memory,
    "whole.server.new": _server_new,
    "whole.server.hello": _server_hello,
    "whole.server.begin": _server_begin,
    "whole.server.receive": _server_receive,
    "whole.server.close": _server_close,
}
