"""Operations of clients and the server, and the intermediate values of a client's messages."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from secagg import codec, reference
from secagg.agreement.plan import Plan
from secagg.crypto import hashtree, prg, shamir
from secagg.crypto.keys import AgreementKey, Identity, hkdf
from secagg.crypto.prg import pairwise_sign
from secagg.protocol import client_state, server_state, transcript
from secagg.protocol.client import Client
from secagg.protocol.client_state import ClientMemory, Opening, State
from secagg.protocol.messages import Dealing, KeyAdvert, MaskedInput, Message, ToClient
from secagg.protocol.server import Server
from secagg.protocol.unmask import AgreedOpening, Shares, rebuild
from secagg.protocol.wire import decode, encode
from secagg.types import ClientId
from tests.vectors.check.session import Actor, GivenPlan, Operation, Session, Values, row_name, update_of, words

# --- a client --------------------------------------------------------------------------------------------


def _client_new(s: Session, v: Values) -> Values:
    """`client` is the id, `actor` its name in this file: two actors may be the same client. `plan` names its plan.

    They share a journal unless `journal` names another one. `entropy` names the draws (default: `actor`).
    """
    name = v.get("actor", str(v["client"]))
    identity = Identity.from_private(bytes.fromhex(s.given["identities"][str(v["client"])]))
    agreed = GivenPlan(Plan.from_bytes(s.get(v.get("plan", "plan"))))
    journal = s.journal(v.get("journal", str(v["client"])))
    entropy = s.entropy(str(v.get("entropy", name)))
    machine = Client(v["client"], identity, agreed, v["round"], journal, entropy=entropy)
    s.actors[name] = Actor(machine, identity, agreed, journal, entropy)
    return {"identity": identity.public.hex()}


def _client_hello(s: Session, v: Values) -> Values:
    return {"message": s.put(v["as"], encode(s.actors[v["client"]].machine.hello()))}


def _client_receive(s: Session, v: Values) -> Values:
    segments = s.actors[v["client"]].agreed.only.encoding.segments
    update = update_of(segments, s.given["updates"][v["update"]]) if "update" in v else None
    context = bytes.fromhex(v.get("context", ""))
    reply = s.actors[v["client"]].machine.receive(s.get(v["message"]), update=update, context=context)
    return {"message": s.put(v["as"], encode(reply))}


def _client_state(s: Session, v: Values) -> Values:
    return {"state": s.actors[v["client"]].machine.state.name}


def _client_save(s: Session, v: Values) -> Values:
    return {"bytes": s.put(v["as"], s.actors[v["client"]].machine.save())}


def _client_restore(s: Session, v: Values) -> Values:
    """Make `actor` (default: the client itself) from the saved bytes of a client."""
    saved = s.actors[v["client"]]
    actor = replace(saved, journal=s.journal(v["journal"]) if "journal" in v else saved.journal)
    actor.restore(s.get(v["bytes"]))
    s.actors[v["actor"] if "actor" in v else v["client"]] = actor
    return {"state": actor.machine.state.name}


def _client_records(s: Session, v: Values) -> Values:
    return {"records": {name: content.hex() for name, content in s.journal(str(v["client"])).records.items()}}


def _client_values(s: Session, v: Values) -> Values:
    """Every intermediate value of the last message (`message`) that this client sent."""
    actor = s.actors[v["client"]]
    memory, message = actor.memory(), decode(s.get(v["message"]))
    return _VALUES_OF[memory.state](memory, message, actor)


def _advert_values(memory: ClientMemory, message: Message, actor: Actor) -> Values:
    assert isinstance(message, KeyAdvert)
    plan = actor.agreed.only
    statement = transcript.key_statement(plan.training_id, memory.round, plan.roster_hash, message)
    return {"channel_private": memory.channel.hex(), "mask_private": memory.mask.hex(), "signed": statement.hex()}


def _dealing_values(memory: ClientMemory, message: Message, actor: Actor) -> Values:
    assert isinstance(message, Dealing)
    plan, adverts = actor.machine.plan, {advert.sender: advert for advert in memory.adverts}
    channel = AgreementKey.from_private(memory.channel)
    size = len(message.boxes) // (len(adverts) - 1)
    boxes = {
        holder: message.boxes[place * size : (place + 1) * size]
        for place, holder in enumerate(v for v in sorted(adverts) if v != memory.me)
    }
    holders, leaves = {}, []
    for holder in sorted(adverts):
        values: Values = {"index": plan.index[holder]}
        if holder == memory.me:
            content = memory.held[0].nonce + memory.held[0].shares
        else:
            agreed = channel.agree(adverts[holder].channel)
            address = reference.box_address(plan.hash, memory.me, holder)
            content = reference.unseal(agreed, address, boxes[holder])
            values |= {"agreed": agreed.hex(), "address": address.hex(), "key": hkdf(agreed, address).hex()}
        nonce, data = content[:32], content[32:]
        shares = [data[k : k + shamir.SHARE_BYTES] for k in range(0, len(data), shamir.SHARE_BYTES)]
        nonces = [reference.share_nonce(nonce, k) for k in range(len(shares))]
        hashes = [
            reference.share_hash(plan.hash, memory.me, holder, k, share, nonces[k]) for k, share in enumerate(shares)
        ]
        leaves.append(reference.tree_leaf(b"".join(hashes)))
        values |= {
            "pair_nonce": nonce.hex(),
            "shares": [share.hex() for share in shares],
            "nonces": [nonce.hex() for nonce in nonces],
            "hashes": [found.hex() for found in hashes],
        }
        holders[str(holder)] = values
    return {
        "seeds": [seed.hex() for seed in memory.seeds],
        "holders": holders,
        "tree": [level.hex() for level in hashtree.levels(b"".join(leaves))],
        "signed": transcript.dealing_statement(plan.hash, adverts[memory.me], message).hex(),
    }


def _masking_values(memory: ClientMemory, message: Message, actor: Actor) -> Values:
    assert isinstance(message, MaskedInput)
    plan, adverts = actor.machine.plan, {advert.sender: advert for advert in memory.adverts}
    mask, members = AgreementKey.from_private(memory.mask), {dealer.id for dealer in memory.dealers}
    rows = {}
    for (r, g), vector in zip(plan.groups_of[memory.me], message.vectors, strict=True):
        own = reference.self_key(memory.seeds[r], plan.hash, memory.me, r)
        encoded = vector.astype(np.uint32)
        prg.add_masks(encoded, [own], [-1])
        pairs = {}
        for peer in plan.groupings[r][g]:
            if peer == memory.me or peer not in members:
                continue
            agreed = mask.agree(adverts[peer].mask)
            key = reference.pairwise_key(agreed, plan.hash, memory.me, peer, r)
            sign = pairwise_sign(memory.me, peer)
            prg.add_masks(encoded, [key], [-sign])
            pairs[str(peer)] = {
                "agreed": agreed.hex(), "key": key.hex(), "sign": sign,
                "mask": words(prg.mask(key, plan.length)),
            }  # fmt: skip
        rows[row_name((r, g))] = {
            "encoded": words(encoded),
            "own": {"key": own.hex(), "mask": words(prg.mask(own, plan.length))},
            "pairs": pairs,
        }
    view = transcript.view(plan.hash, [(adverts[dealer.id], dealer) for dealer in memory.dealers])
    hashed = transcript.vectors_hash(message.vectors)
    statement = transcript.view_statement(plan.hash, memory.me, view, message.disputes, hashed)
    return {
        "rows": rows,
        "view": view.hex(),
        "vectors": hashed.hex(),
        "signed": statement.hex(),
        "clipped": memory.clipped,
    }


def _opening_values(memory: ClientMemory, _: Message, actor: Actor) -> Values:
    plan, adverts = actor.machine.plan, {advert.sender: advert for advert in memory.adverts}
    view = transcript.view(plan.hash, [(adverts[dealer.id], dealer) for dealer in memory.dealers])
    record = Opening(plan.hash, view, memory.survivors, memory.inputs, memory.groups)
    return {
        "inputs": memory.inputs.hex(),
        "signed": transcript.opening(plan, view, memory.survivors, memory.inputs, memory.groups).hex(),
        "record": codec.to_bytes(client_state.OPENING, record).hex(),
    }


_VALUES_OF: Final[Mapping[State, Callable[[ClientMemory, Message, Actor], Values]]] = {
    State.ADVERTISED: _advert_values,
    State.DEALT: _dealing_values,
    State.MASKED: _masking_values,
    State.SIGNED: _opening_values,
}


def _server_new(s: Session, v: Values) -> Values:
    entropy = s.entropy(v.get("entropy", "server"))
    s.server = Server(Plan.from_bytes(s.get(v["plan"])), s.journal("server"), entropy=entropy)
    return {}


def _server_receive(s: Session, v: Values) -> Values:
    """`counted`, `ignored` (a duplicate, or too late) or `dropped` (the sender has left the run)."""
    waiting = v["client"] in s.server.waiting_for()
    dropout = s.server.receive(v["client"], s.get(v["message"]))
    counted = waiting and v["client"] not in s.server.waiting_for()
    return {"outcome": "dropped" if dropout else "counted" if counted else "ignored"}


def _server_advance(s: Session, v: Values) -> Values:
    return _sent(s, v["as"], s.server.advance())


def _server_outbox(s: Session, v: Values) -> Values:
    return _sent(s, v["as"], s.server.outbox())


def _sent(s: Session, name: str, outbox: Mapping[ClientId, ToClient]) -> Values:
    """The names of the messages to send, by receiver; one name if all receive the same message."""
    made = {client: encode(outbox[client]) for client in outbox}
    same = len(set(made.values())) == 1
    names = {str(v): s.put(name if same else f"{name}/{v}", data) for v, data in made.items()}
    return {"stage": s.server.stage.name, "messages": names}


def _server_values(s: Session, _: Values) -> Values:
    """In stage 4: the secrets that the server will rebuild, and the masked sums."""
    data = s.server.save()
    s.server = Server.restore(data, s.journal("server"))
    memory, plan = server_state.restore(data), s.server.plan
    holders = {v: [h for h in plan.peers(v) if h in memory.adverts] for v in memory.adverts}
    opening = AgreedOpening(
        plan=plan,
        adverts=memory.adverts,
        dealings=memory.dealings,
        holders={v: {h: place for place, h in enumerate(held)} for v, held in holders.items()},
        survivors=frozenset(memory.survivors),
        groups=memory.groups,
    )
    shares = Shares(opening)
    for message in memory.unmaskings.values():
        shares.add(message)
    rebuilt = rebuild(shares)
    return {
        "masked_sums": {row_name(group): words(total) for group, total in sorted(memory.sums.items())},
        "keys": {str(owner): value.hex() for (owner, which), value in rebuilt.secrets.items() if which == 0},
        "seeds": {f"{owner}/{which - 1}": value.hex() for (owner, which), value in rebuilt.secrets.items() if which},
    }


def _server_result(s: Session, _: Values) -> Values:
    result = s.server.result()
    floats = {segment.name for segment in result.plan.encoding.segments if segment.clip is not None}

    def rounded(values: Any) -> Any:
        """In float32, as in a model, or exact integers and their means in float64; of several segments by name."""
        if isinstance(values, dict):
            return {name: shown(name, part) for name, part in values.items()}
        return shown("", values)

    def shown(name: str, values: npt.NDArray[Any]) -> str:
        return (values.astype(np.float32) if name in floats else values).tobytes().hex()

    return {
        "survivors": list(result.survivors),
        "rows": {
            row_name(row): {
                "members": list(opened.members),
                "total": words(opened.total),
                "sum": rounded(result.sum(row)),
                "mean": rounded(result.mean(row)),
            }
            for row, opened in result.groups.items()
        },
        "closed": [row_name(row) for row in result.closed],
        "lost": [row_name(row) for row in result.lost],
        "dropouts": {str(v): dropout.stage.name for v, dropout in sorted(result.dropouts.items())},
        "blamed": sorted(result.blamed),
        "semi_honest_only": result.semi_honest_only,
    }


def _server_save(s: Session, v: Values) -> Values:
    return {"bytes": s.put(v["as"], s.server.save())}


def _server_restore(s: Session, v: Values) -> Values:
    s.server = Server.restore(s.get(v["bytes"]), s.journal(v.get("journal", "server")))
    return {"stage": s.server.stage.name}


OPERATIONS: Final[Mapping[str, Operation]] = {
    "client.new": _client_new,
    "client.hello": _client_hello,
    "client.receive": _client_receive,
    "client.state": _client_state,
    "client.save": _client_save,
    "client.restore": _client_restore,
    "client.records": _client_records,
    "client.values": _client_values,
    "server.new": _server_new,
    "server.receive": _server_receive,
    "server.advance": _server_advance,
    "server.outbox": _server_outbox,
    "server.values": _server_values,
    "server.result": _server_result,
    "server.save": _server_save,
    "server.restore": _server_restore,
}
