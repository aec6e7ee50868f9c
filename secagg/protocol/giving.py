"""What a client gives in stage 4: its own seeds, and one kind of share per peer."""

from secagg.agreement.plan import Plan
from secagg.protocol import transcript
from secagg.protocol.client_state import ClientMemory
from secagg.protocol.dealing import nonces_of
from secagg.protocol.messages import Unmasking


def own_seeds_and_shares(plan: Plan, memory: ClientMemory) -> Unmasking:
    """The unsigned message: shares of a peer's seeds if it is summed, of its mask key if it is not.

    Bonawitz et al. 2017, Fig. 4, Round 4: b_{v,u} for v in U3, s^SK_{v,u} for v in U2 minus U3. Deviation: only the
    seeds of opened groups, and only the keys of clients with an opened group. The two sets come from the one U3 that at
    least t clients signed, so they cannot overlap. The client's own seeds make it unnecessary to rebuild them, so a bad
    dealer loses a group only if it also vanishes.
    """
    # audit: signed-u3-has-whole-atoms
    alive, opened = frozenset(plan.summed(memory.survivors)), frozenset(memory.groups)
    seed_owners, key_owners = [], []
    own: list[bytes] = []
    seeds: list[bytes] = []
    keys: list[bytes] = []
    for held, nonces in zip(memory.held, nonces_of(plan, memory.held), strict=True):
        # audit: closed-sums-stay-closed
        groupings = [r for r, g in plan.groups_of[held.dealer] if (r, g) in opened]
        if not groupings:
            continue
        if held.dealer in alive:  # audit: client-one-kind-of-share
            seed_owners.append(held.dealer)
            seeds.extend(held.share(r + 1) + nonces[r + 1].tobytes() for r in groupings)
            if held.dealer == memory.me:
                own.extend(memory.seeds[r] for r in groupings)
        else:
            key_owners.append(held.dealer)
            secret = transcript.KEY_SECRET
            keys.append(held.share(secret) + nonces[secret].tobytes())
    return Unmasking(
        memory.me, b"".join(own), tuple(seed_owners), b"".join(seeds), tuple(key_owners), b"".join(keys), b""
    )
