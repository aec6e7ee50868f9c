"""Every security check with the test that fails when the check is taken out.

    python -m tests.secagg.mutations            # all of them, two at a time
    python -m tests.secagg.mutations opening    # those whose claim holds this word
    python -m tests.secagg.mutations --write    # write the pairs into docs/audit.md

Each line of the table takes one check out of a copy of the package (exact source before and after) and runs
one test on the copy. The test must fail; if it passes, nothing in the suite would notice that the check is
gone. `docs/audit.md` prints the same pairs; `test_mutations.py` keeps the table in step with the source.
"""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from queue import Queue

ROOT = Path(__file__).parents[2]
WORKERS = 2
PAGE, BEGIN, END = ROOT / "docs" / "audit.md", "<!-- table -->\n", "<!-- end of table -->"


@dataclass(frozen=True)
class Mutation:
    """A claim; the check that upholds it; what is left without the check; the test that then fails."""

    claim: str
    file: str  # in secagg/
    before: str
    after: str
    test: str  # in tests/secagg/

    @property
    def source(self) -> Path:
        return ROOT / "secagg" / self.file

    @property
    def check(self) -> str:
        """Where the check is: file and function (or class, or table), as docs/audit.md names it."""
        text = self.source.read_text()
        line = text[: text.index(self.before)].count("\n") + 1
        scopes: list[str] = []
        node: ast.AST = ast.parse(text)
        while True:
            inside = [
                child
                for child in ast.iter_child_nodes(node)
                if isinstance(child, ast.FunctionDef | ast.ClassDef | ast.AnnAssign)
                and child.lineno <= line <= (child.end_lineno or 0)
                and not (scopes and isinstance(child, ast.AnnAssign))
            ]
            if not inside:
                return f"{self.file}: {'.'.join(scopes)}"
            node = inside[0]
            scopes.append(ast.unparse(node.target) if isinstance(node, ast.AnnAssign) else node.name)


SERVER, CLIENTS = "test_adversarial_server.py::test_", "test_adversarial_clients.py::test_"
SPLIT, STATE = "test_split_views.py::test_", "test_state_in_bytes.py::test_"
FLOORS, FUZZ, BIND = "test_floors.py::test_", "test_fuzz.py::test_", "test_bindings.py::test_"
REPLAY, SECRETS = "test_replay.py::test_", "test_secrets_do_not_leak.py::test_"
SHOWN = SECRETS + "no_secret_in_anything_that_an_honest_run_shows"
CHEAT = CLIENTS + "a_bad_message_makes_its_sender_a_dropout_with_a_reason"
NAMED = CLIENTS + "evidence_names_the_cheater"
HARM = CLIENTS + "no_cheat_stops_a_run_spoils_another_row_or_frames_anybody"
BELOW = FLOORS + "a_plan_one_below_a_floor_is_refused_before_anything_is_sent"

TABLE: tuple[Mutation, ...] = (
    # --- a client: who it is, and once only
    Mutation(
        "a client is on the pinned roster with its own identity",
        "protocol/client.py",
        "        if identity.public != {m.id: m.identity for m in floors.roster}.get(me):\n"
        '            raise UsageError(f"client {me} with',
        '        if False:\n            raise UsageError(f"client {me} with',
        SERVER + "a_client_with_another_identity_is_not_on_the_roster",
    ),
    Mutation(
        "hello() opens a run once",
        "protocol/client.py",
        "        if self.state is not State.NEW:",
        "        if False:",
        SERVER + "hello_opens_a_run_once",
    ),
    Mutation(
        "a violation ends the run for good",
        "protocol/client.py",
        "        before, self._memory.state = self.state, State.FAILED",
        "        before = self.state",
        REPLAY + "every_message_of_two_runs_in_every_state_of_every_client",
    ),
    Mutation(
        "unmasking is given once",
        "protocol/client.py",
        "    (State.SIGNED, Signatures): (Client._unmask, State.DONE),",
        "    (State.SIGNED, Signatures): (Client._unmask, State.SIGNED),",
        SERVER + "client_gives_one_kind_of_share_per_peer_and_never_unmasks_twice",
    ),
    Mutation(
        "a client is not copied or pickled",
        "protocol/client.py",
        '        raise UsageError("a client is not copied or pickled; save() writes it, once")',
        "        return object.__reduce_ex__(self, protocol)",
        STATE + "a_client_is_neither_copied_nor_pickled",
    ),
    # --- a client: plan and keys
    Mutation(
        "another plan for the same update is refused",
        "protocol/client.py",
        "        if earlier not in (None, plan.hash):",
        "        if False:",
        SERVER + "another_plan_for_the_same_update_is_refused",
    ),
    Mutation(
        "floors are checked",
        "protocol/client.py",
        "        self._floors.check(plan, self.me, self._memory.round, context)",
        "        pass",
        BELOW,
    ),
    Mutation(
        "the key list names me and my peers, once each, in order",
        "protocol/client.py",
        "        if sorted(set(ids)) != ids or not {self.me} <= set(ids) <= peers:",
        "        if not set(ids) <= peers:",
        SERVER + "the_key_list_names_me_and_my_peers_once_each_in_order",
    ),
    Mutation(
        "nobody from outside the roster is in the key list",
        "protocol/client.py",
        "not {self.me} <= set(ids) <= peers:",
        "not {self.me} <= set(ids):",
        SERVER + "the_key_list_names_me_and_my_peers_once_each_in_order[stranger]",
    ),
    Mutation(
        "fewer than t keys are refused",
        "protocol/client.py",
        '        if len(ids) < plan.t:\n            raise TooFewSurvivors(f"{len(ids)} clients sent keys',
        '        if False:\n            raise TooFewSurvivors(f"{len(ids)} clients sent keys',
        SERVER + "fewer_than_t_keys_are_refused_and_t_are_enough",
    ),
    Mutation(
        "my own keys may not be swapped",
        "protocol/client.py",
        "if (advert.channel, advert.mask) != (self._channel_key.public, self._mask_key.public):",
        "if False:",
        SERVER + "a_key_of_mine_that_is_not_mine_is_refused",
    ),
    Mutation(
        "every advert is checked by every client",
        "protocol/client.py",
        "            check_advert(plan, advert)",
        "            pass",
        SERVER + "a_key_swapped_in_flight_is_refused_and_its_owner_named",
    ),
    Mutation(
        "keys are signed by their owner",
        "protocol/dealing.py",
        "    verify(plan.identities[advert.sender], advert.signature, statement, signer=advert.sender)",
        "    pass",
        SERVER + "without_signatures_on_keys_the_server_reads_every_share_and_lays_the_victim_bare",
    ),
    Mutation(
        "channel keys of low order are refused",
        "protocol/dealing.py",
        "        check_public_key(advert.channel)",
        "        pass",
        SERVER + "every_low_order_or_non_canonical_key_is_refused_although_its_owner_signed_it",
    ),
    Mutation(
        "mask keys of low order are refused",
        "protocol/dealing.py",
        "        check_public_key(advert.mask)",
        "        pass",
        SERVER + "every_low_order_or_non_canonical_key_is_refused_although_its_owner_signed_it",
    ),
    Mutation(
        "a bad key names its owner",
        "protocol/dealing.py",
        '        raise PeerError(f"client {advert.sender}: {bad}", culprit=advert.sender) from None',
        "        raise",
        SERVER + "every_low_order_or_non_canonical_key_is_refused_although_its_owner_signed_it",
    ),
    Mutation(
        "one key for two purposes is refused",
        "protocol/dealing.py",
        "    if advert.channel == advert.mask:",
        "    if False:",
        SERVER + "one_key_for_two_purposes_is_refused",
    ),
    Mutation(
        "low-order points are known",
        "crypto/keys.py",
        "    if public in LOW_ORDER_POINTS:",
        "    if False:",
        SERVER + "every_low_order_or_non_canonical_key_is_refused_although_its_owner_signed_it",
    ),
    Mutation(
        "non-canonical keys are refused",
        "crypto/keys.py",
        '    if int.from_bytes(public, "little") >= _FIELD_25519:',
        "    if False:",
        SERVER + "every_low_order_or_non_canonical_key_is_refused_although_its_owner_signed_it",
    ),
    Mutation(
        "a signature is verified",
        "crypto/keys.py",
        "    if not _accepts(public, signature, message):",
        "    if False:",
        CHEAT,
    ),
    Mutation(
        "a signature has 64 bytes",
        "crypto/keys.py",
        "    if len(public) != KEY_BYTES or len(signature) != SIGNATURE_BYTES:",
        "    if len(public) != KEY_BYTES:",
        "test_keys.py::test_the_border_between_signature_and_message_is_fixed",
    ),
    Mutation(
        "an agreement key has 32 bytes",
        "crypto/keys.py",
        '            raise UsageError(f"an X25519 private key has 32 bytes, not {len(private)}")',
        "            pass",
        "test_keys.py::test_private_keys_of_another_length_are_refused",
    ),
    Mutation(
        "an agreement key is not copied or pickled",
        "crypto/keys.py",
        '        raise UsageError("an agreement key is not copied or pickled")',
        "        return super().__reduce_ex__(protocol)",
        "test_keys.py::test_secrets_are_not_in_repr_and_keys_are_not_copied",
    ),
    Mutation(
        "an identity has 32 bytes",
        "crypto/keys.py",
        "    if len(public) != KEY_BYTES or len(signature) != SIGNATURE_BYTES:",
        "    if len(signature) != SIGNATURE_BYTES:",
        "test_keys.py::test_an_identity_of_another_length_signs_nothing",
    ),
    Mutation(
        "a libsodium with another rule is not used",
        "crypto/keys.py",
        "    _know_the_rule()\n",
        "",
        "test_keys.py::test_a_library_with_another_rule_is_not_used",
    ),
    Mutation(
        "a wrong signature names its signer",
        "crypto/keys.py",
        'raise PeerError(f"client {signer}: wrong signature", culprit=signer)',
        'raise PeerError(f"client {signer}: wrong signature")',
        SERVER + "a_key_swapped_in_flight_is_refused_and_its_owner_named",
    ),
    # --- a client: U2 and boxes
    Mutation(
        "U2 is inside U1, with me, once each, in order",
        "protocol/client.py",
        "        if sorted(set(ids)) != ids or not {self.me} <= set(ids) <= set(adverts):",
        "        if not set(ids) <= set(adverts):",
        SERVER + "u2_is_inside_u1_with_me_once_each_in_order",
    ),
    Mutation(
        "fewer than t dealers are refused",
        "protocol/client.py",
        '        if len(ids) < plan.t:\n            raise TooFewSurvivors(f"{len(ids)} clients shared keys',
        '        if False:\n            raise TooFewSurvivors(f"{len(ids)} clients shared keys',
        SERVER + "u2_below_the_threshold_is_refused",
    ),
    Mutation(
        "a dealer has one commitment per grouping",
        "protocol/client.py",
        "        if any(len(dealer.commitments) != len(plan.groupings) for dealer in message.dealers):",
        "        if False:",
        SERVER + "a_dealer_without_one_commitment_per_grouping_is_refused",
    ),
    Mutation(
        "my own dealing may not be altered",
        "protocol/client.py",
        "        if self._memory.mine[0] not in message.dealers:",
        "        if False:",
        SERVER + "my_own_dealing_may_not_be_altered",
    ),
    Mutation(
        "one box and one proof per dealer",
        "protocol/client.py",
        "        if len(message.boxes) != len(others) * box_size or len(proofs) != len(others):",
        "        if False:",
        SERVER + "a_bundle_has_one_box_and_one_proof_per_dealer",
    ),
    Mutation(
        "proofs end where the message ends",
        "protocol/dealing.py",
        "        if end > len(data):",
        "        if False:",
        SERVER + "a_bundle_has_one_box_and_one_proof_per_dealer[cut-proofs]",
    ),
    Mutation(
        "a share matches its dealer's signed hash, or the pair is disputed",
        "protocol/client.py",
        "            if shares.canonical and root == dealer.root:",
        "            if shares.canonical:",
        SERVER + "a_share_that_its_dealer_did_not_sign_is_a_disputed_pair",
    ),
    Mutation(
        "a share that is no field element is disputed",
        "protocol/client.py",
        "            if shares.canonical and root == dealer.root:",
        "            if root == dealer.root:",
        HARM + "[shares not below the prime]",
    ),
    Mutation(
        "a box that does not open is disputed, not fatal",
        "protocol/client.py",
        "            except PeerError:\n                disputes.append(dealer.id)\n                continue",
        "            except PeerError:\n                raise",
        CLIENTS + "a_disputed_pair_is_an_erasure_and_not_an_error",
    ),
    Mutation(
        "a box is bound to sender and receiver",
        "crypto/box.py",
        'plan_hash + sender.to_bytes(4, "little") + receiver.to_bytes(4, "little")',
        "plan_hash",
        BIND + "a_box_opens_only_for_its_pair_direction_and_plan",
    ),
    Mutation(
        "a box is bound to the plan",
        "crypto/box.py",
        "    return labels.SHARE_BOX + plan_hash + sender",
        "    return labels.SHARE_BOX + sender",
        BIND + "a_box_opens_only_for_its_pair_direction_and_plan[plan_hash]",
    ),
    Mutation(
        "a box is authenticated",
        "crypto/box.py",
        "    except (InvalidTag, ValueError):",
        "    except ValueError:",
        BIND + "a_box_opens_only_for_its_pair_direction_and_plan[box]",
    ),
    # --- a client: masks
    Mutation(
        "a vector carries its own mask",
        "protocol/client.py",
        "add_masks(vector, [own, *(next(keys).tobytes() for _ in others)], signs,",
        "add_masks(vector, [next(keys).tobytes() for _ in others], signs[1:],",
        "test_privacy_enumeration.py::test_before_unmasking_the_view_is_uniform_whatever_the_inputs",
    ),
    Mutation(
        "a vector carries the masks of its group in U2",
        "protocol/client.py",
        "if v != memory.me and v in members] for r, g in rows]",
        "if False] for r, g in rows]",
        "test_privacy_enumeration.py::test_equal_sums_give_the_same_view_count_for_count",
    ),
    Mutation(
        "each grouping has a seed of its own",
        "protocol/client.py",
        "        memory.seeds = tuple(self._entropy(shamir.SECRET_BYTES) for _ in range(groupings))",
        "        memory.seeds = (self._entropy(shamir.SECRET_BYTES),) * groupings",
        "test_reference.py::test_real_and_reference_deal_the_same_shares",
    ),
    Mutation(
        "pairwise masks differ between groupings",
        "crypto/masks.py",
        "u32(low) + u32(high) + u32(grouping), KEY_BYTES)",
        "u32(low) + u32(high), KEY_BYTES)",
        BIND + "everything_that_should_be_bound_is[pairwise mask]",
    ),
    Mutation(
        "pairwise masks bind the plan",
        "crypto/masks.py",
        "labels.PAIRWISE_MASK + plan_hash + u32(low)",
        "labels.PAIRWISE_MASK + u32(low)",
        BIND + "everything_that_should_be_bound_is[pairwise mask]",
    ),
    Mutation(
        "pairwise masks differ between groupings, for many at once",
        "crypto/masks.py",
        "len(opening))), ids.view(np.uint8)], axis=1)",
        "len(opening))), ids[:, :2].copy().view(np.uint8)], axis=1)",
        "test_hashing.py::test_the_mask_keys_of_many_pairs_are_those_of_each",
    ),
    Mutation(
        "pairwise masks bind the plan, for many at once",
        "crypto/masks.py",
        "labels.PAIRWISE_MASK + plan_hash, np.uint8)",
        "labels.PAIRWISE_MASK, np.uint8)",
        "test_hashing.py::test_the_mask_keys_of_many_pairs_are_those_of_each",
    ),
    Mutation(
        "the keys of many boxes bind plan, sender and receiver",
        "crypto/box.py",
        "[_address(plan_hash, sender, receiver) for sender, receiver in ends]",
        "[labels.SHARE_BOX for _ in ends]",
        "test_box.py::test_the_keys_of_many_boxes_are_those_of_each",
    ),
    Mutation(
        "self masks bind the plan",
        "crypto/masks.py",
        "labels.SELF_MASK + plan_hash",
        "labels.SELF_MASK",
        BIND + "everything_that_should_be_bound_is[self mask]",
    ),
    # --- a client: U3 and rows
    Mutation(
        "every member of U3 signed my view of U2",
        "protocol/client.py",
        "            verify(plan.identities[member.id], member.signature, statement, signer=member.id)",
        "            pass",
        SPLIT + "every_split_of_u1_u2_and_u3_together_reveals_nothing_more[n4-c1-t3-1x2]",
    ),
    Mutation(
        "U3 names me, everyone once, in order",
        "protocol/client.py",
        "        if list(ids) != sorted(set(ids)) or self.me not in ids:",
        "        if False:",
        SERVER + "u3_names_me_and_everyone_once_in_order",
    ),
    Mutation(
        "U3 is inside U2",
        "protocol/client.py",
        "        if not set(ids) <= (set(plan.ids) if plan.semi_honest_only else mine):",
        "        if False:",
        SERVER + "u3_outside_u2_is_refused",
    ),
    Mutation(
        "fewer than t survivors are refused",
        "protocol/client.py",
        "        if len(set(ids) & mine) < plan.t:",
        "        if False:",
        SERVER + "u3_below_the_threshold_is_refused",
    ),
    Mutation(
        "only rows that my own audit allows are signed",
        "protocol/client.py",
        "        if refused:\n            why",
        "        if False:\n            why",
        SERVER + "a_row_that_the_audit_closes_is_refused",
    ),
    Mutation(
        "the opening is recorded",
        "protocol/client.py",
        "        self._record_opening()\n",
        "",
        SERVER + "a_repeat_with_other_survivors_is_refused_after_stage_three",
    ),
    Mutation(
        "another opening of the update is refused",
        "protocol/client.py",
        "if replace(earlier, rows=wanted.rows) != wanted or not set(wanted.rows) <= set(earlier.rows):",
        "if not set(wanted.rows) <= set(earlier.rows):",
        SERVER + "a_repeat_with_other_survivors_is_refused_after_stage_three",
    ),
    Mutation(
        "an opening belongs to one run",
        "protocol/client.py",
        "        wanted = Opening(self.plan.hash, self._view, memory.survivors, memory.rows)",
        "        wanted = Opening(self.plan.hash, bytes(32), memory.survivors, memory.rows)",
        SERVER + "a_repeat_with_the_same_survivors_is_refused_after_stage_three",
    ),
    Mutation(
        "rows may shrink but never grow",
        "protocol/client.py",
        "!= wanted or not set(wanted.rows) <= set(earlier.rows):",
        "!= wanted:",
        SERVER + "the_record_lets_a_restored_client_sign_the_same_opening_or_fewer_rows_and_no_other",
    ),
    Mutation(
        "a second answer in stage 3 is the same",
        "protocol/client.py",
        '            raise PeerError("the server named other survivors or rows than I signed")',
        "            pass",
        SERVER + "a_second_answer_in_stage_three_is_the_same_or_none",
    ),
    # --- a client: opening
    Mutation(
        "endorsements are signatures over exactly what I signed",
        "protocol/client.py",
        "verify(plan.identities[endorsement.id], endorsement.signature, statement, signer=endorsement.id)",
        "pass",
        SPLIT + "different_survivors_told_to_everybody_open_nothing",
    ),
    Mutation(
        "an endorser counts once",
        "protocol/client.py",
        "        if signers != sorted(set(signers)):",
        "        if False:",
        SERVER + "a_signer_counts_once",
    ),
    Mutation(
        "only members of U3 endorse",
        "protocol/client.py",
        "            if endorsement.id not in electorate:",
        "            if False:",
        SERVER + "only_members_of_u3_may_sign_the_opening",
    ),
    Mutation(
        "t endorsements, not fewer",
        "protocol/client.py",
        "            if valid == plan.t:",
        "            if valid == plan.t - 1:",
        SERVER + "t_signatures_open_and_one_less_does_not",
    ),
    Mutation(
        "one kind of share per peer",
        "protocol/client.py",
        "            if held.dealer in alive:\n",
        "            keys.append(held.share(0) + nonce_of(held.nonce, 0))\n"
        "            key_owners.append(held.dealer)\n"
        "            if held.dealer in alive:\n",
        SERVER + "client_gives_one_kind_of_share_per_peer_and_never_unmasks_twice",
    ),
    Mutation(
        "shares of closed rows stay",
        "protocol/client.py",
        "            groupings = [r for r, g in plan.rows_of[held.dealer] if (r, g) in opened]",
        "            groupings = [r for r, g in plan.rows_of[held.dealer]]",
        SERVER + "only_seeds_of_opened_rows_and_keys_of_their_members_leave",
    ),
    # --- state in bytes
    Mutation(
        "a step is taken by one copy of a client",
        "protocol/client.py",
        '(name, b"") is not None:\n            raise AlreadyUsed(f"client',
        '(name, b"") is not None and False:\n            raise AlreadyUsed(f"client',
        STATE + "of_two_processes_restored_from_the_same_bytes_exactly_one_acts",
    ),
    Mutation(
        "a step is claimed before the answer leaves",
        "protocol/client.py",
        "        reply = handler(self, message, given)\n        self._take_step()\n",
        "        reply = handler(self, message, given)\n",
        STATE + "nothing_leaves_when_the_journal_refuses",
    ),
    Mutation(
        "hello claims its step",
        "protocol/client.py",
        "        self._take_step()\n        memory.state = State.ADVERTISED",
        "        memory.state = State.ADVERTISED",
        STATE + "of_two_copies_of_a_new_client_exactly_one_says_hello",
    ),
    Mutation(
        "saving consumes the client",
        "protocol/client.py",
        "        data = client_state.save(self._memory)\n        self._memory.state = State.FAILED\n",
        "        data = client_state.save(self._memory)\n",
        STATE + "saving_consumes_the_client_and_the_server",
    ),
    Mutation(
        "a finished client is not saved",
        "protocol/client.py",
        "        if self.state in (State.FAILED, State.DONE):",
        "        if False:",
        STATE + "a_finished_or_failed_run_is_not_saved",
    ),
    Mutation(
        "saved bytes belong to one identity",
        "protocol/client.py",
        "        if identity.public != {m.id: m.identity for m in floors.roster}.get(client.me):",
        "        if False:",
        STATE + "saved_bytes_belong_to_one_identity_and_one_version",
    ),
    Mutation(
        "a journal is exclusive between processes",
        "protocol/journal.py",
        "            os.link(draft, final)",
        "            os.replace(draft, final)",
        STATE + "of_many_threads_restored_from_the_same_bytes_exactly_one_acts",
    ),
    Mutation(
        "a stage is closed by one copy of a server",
        "protocol/server.py",
        '        if self._journal.create(name, b"") is not None:',
        '        if self._journal.create(name, b"") is not None and False:',
        STATE + "of_two_servers_restored_from_the_same_bytes_exactly_one_closes_the_stage",
    ),
    Mutation(
        "saving consumes the server",
        "protocol/server.py",
        "        data = server_state.save(ledger)\n        self.stage = Stage.FAILED\n",
        "        data = server_state.save(ledger)\n",
        STATE + "saving_consumes_the_client_and_the_server",
    ),
    # --- the plan and the floors
    Mutation(
        "two sets of t share an honest client",
        "protocol/plan.py",
        "        elif 2 * t <= n + colluders:",
        "        elif False:",
        FLOORS + "a_threshold_that_two_sets_could_reach_cannot_be_built",
    ),
    Mutation(
        "t is at most n",
        "protocol/plan.py",
        "        elif not 2 <= t <= n:",
        "        elif False:",
        FLOORS + "a_threshold_that_two_sets_could_reach_cannot_be_built",
    ),
    Mutation(
        "a plan has one encoding",
        "protocol/plan.py",
        "        if plan.to_bytes() != data:",
        "        if False:",
        FUZZ + "mutated_bytes_give_a_value_with_that_encoding_or_a_typed_error[Plan]",
    ),
    Mutation(
        "a plan of another version is refused",
        "protocol/plan.py",
        "        if self.version != labels.VERSION:",
        "        if False:",
        FUZZ + "a_plan_has_one_encoding_one_version_and_no_slack",
    ),
    *(
        Mutation(f"floor: {name}", "protocol/plan.py", before, after, test)
        for name, before, after, test in (
            ("training", "(plan.training_id != self.training_id,", "(False,", BELOW + "[another training]"),
            ("round", "(plan.round != round,", "(False,", FLOORS + "a_plan_for_another_round_is_refused"),
            (
                "roster",
                "(plan.roster != self.roster,",
                "(False,",
                FLOORS + "a_roster_that_is_not_the_pinned_one_is_refused",
            ),
            (
                "training seed",
                "(plan.training_seed != self.training_seed,",
                "(False,",
                BELOW + "[another training seed]",
            ),
            ("context", "(plan.context != context,", "(False,", FLOORS + "another_context_is_refused"),
            (
                "colluders",
                "plan.assumed_colluders < least_colluders,",
                "plan.assumed_colluders < least_colluders - 1,",
                BELOW + "[one colluder fewer]",
            ),
            (
                "clip",
                "plan.clip is not None and not least_clip <= plan.clip <= most_clip,",
                "False,",
                BELOW + "[clip a little less]",
            ),
            (
                "bound of integers",
                "plan.bound is not None and (self.bound is None or plan.bound < self.bound),",
                "False,",
                BELOW + "[integers one below mine]",
            ),
            (
                "own weight",
                "bool(plan.weights) and self.weight not in (None, plan.weight_of.get(me)),",
                "False,",
                BELOW + "[not my weight]",
            ),
            (
                "weight ratio",
                "max(weights) > self.weight_ratio * min(weights),",
                "False,",
                BELOW + "[weights a little further apart]",
            ),
            (
                "groupings",
                "plan.schedule.groupings > self.groupings,",
                "False,",
                BELOW + "[one grouping more]",
            ),
            (
                "schedule",
                "self.schedule not in (None, plan.schedule),",
                "False,",
                BELOW + "[another schedule]",
            ),
            (
                "policy",
                "(not plan.policy.at_least(self.policy),",
                "(False,",
                BELOW + "[anonymity one less]",
            ),
            (
                "sparse mode",
                "plan.semi_honest_only and not self.accept_semi_honest_server_only,",
                "False,",
                BELOW + "[the sparse mode]",
            ),
            (
                "sparse risk",
                "plan.semi_honest_only and plan.sparse_risk(gone=0) > self.sparse_risk,",
                "False,",
                BELOW + "[a sparse graph that two colluders may cut]",
            ),
        )
    ),
    *(
        Mutation(
            f"policy floor: {part}",
            "exposure/audit.py",
            f"            and {before}\n",
            "",
            BELOW + f"[{test}]",
        )
        for part, before, test in (
            ("survivors", "self.min_survivors >= floor.min_survivors", "one survivor fewer"),
            ("anonymity", "self.anonymity >= floor.anonymity", "anonymity one less"),
            ("leverage", "self.max_leverage <= floor.max_leverage", "leverage a little more"),
        )
    ),
    # --- the server: who sent it, and when
    Mutation(
        "a message is from whom it says",
        "protocol/server.py",
        "            if message.sender != sender:",
        "            if False:",
        REPLAY + "a_message_passed_on_by_somebody_else_is_refused",
    ),
    Mutation(
        "a message before its time is refused",
        "protocol/server.py",
        "            if belongs > self.stage:",
        "            if False:",
        CHEAT + "[an unmasking before its time]",
    ),
    Mutation(
        "a second answer changes nothing",
        "protocol/server.py",
        "            if belongs < self.stage or sender in self._answers():",
        "            if belongs < self.stage:",
        CLIENTS + "a_second_answer_changes_nothing",
    ),
    Mutation(
        "a late answer changes nothing",
        "protocol/server.py",
        "            if belongs < self.stage or sender in self._answers():",
        "            if sender in self._answers():",
        REPLAY + "a_clients_own_messages_replayed_in_every_later_stage_change_nothing",
    ),
    Mutation(
        "who left does not come back",
        "protocol/server.py",
        "        if sender in self._dropouts or self.stage >= Stage.DONE:",
        "        if self.stage >= Stage.DONE:",
        CHEAT + "[garbage and then the right message at input]",
    ),
    Mutation(
        "a message to clients is none to the server",
        "protocol/server.py",
        "            if type(message) not in _STAGE_OF:",
        "            if False:",
        CHEAT + "[a server's message at keys]",
    ),
    Mutation(
        "a bad message drops its sender and not the run",
        "protocol/server.py",
        "        except PeerError as bad:\n            return self._drop(sender, str(bad))",
        "        except PeerError as bad:\n            raise",
        HARM + "[garbage at keys]",
    ),
    # --- the server: what it says
    Mutation(
        "the server checks every advert",
        "protocol/server.py",
        "        check_advert(self.plan, message)",
        "        pass",
        CHEAT + "[a low-order key]",
    ),
    Mutation(
        "a dealing has one box per peer and one hash per share",
        "protocol/server.py",
        '            raise PeerError("its dealing has not one box per peer and one hash per share")',
        "            pass",
        HARM + "[a box too few]",
    ),
    Mutation(
        "a dealing is signed",
        "protocol/server.py",
        "        verify(plan.identities[sender], message.signature, statement, signer=sender)\n        tree",
        "        tree",
        CHEAT + "[wrong signature at shares]",
    ),
    Mutation(
        "share hashes lead to the signed root",
        "protocol/server.py",
        "        if tree[-1] != message.root:",
        "        if False:",
        CHEAT + "[hashes that do not lead to the root]",
    ),
    Mutation(
        "a masked input has the plan's shape",
        "protocol/server.py",
        "        if message.vectors.shape != (len(rows), plan.length if rows else 0):",
        "        if False:",
        HARM + "[a vector too many]",
    ),
    Mutation(
        "only dealers are disputed",
        "protocol/server.py",
        "        if not set(message.disputes) <= set(self._dealings) - {sender}:",
        "        if False:",
        CHEAT + "[disputes a stranger]",
    ),
    Mutation(
        "a masked input is signed over the common view",
        "protocol/server.py",
        "verify(plan.identities[sender], message.signature, statement, signer=sender)\n        try:",
        "try:",
        CHEAT + "[wrong signature at input]",
    ),
    Mutation(
        "an endorsement is signed",
        "protocol/server.py",
        "        verify(\n            self.plan.identities[message.sender],\n            message.signature,\n"
        "            self._statement(message.sender),\n            signer=message.sender,\n        )\n",
        "",
        CHEAT + "[wrong signature at consistency]",
    ),
    Mutation(
        "an unmasking is signed",
        "protocol/server.py",
        "verify(self.plan.identities[message.sender], message.signature, statement, signer=message.sender)\n"
        "        self._unmaskings",
        "self._unmaskings",
        CHEAT + "[wrong signature at unmasking]",
    ),
    Mutation(
        "below the threshold nothing goes on",
        "protocol/server.py",
        "        if count < plan.t:",
        "        if False:",
        CLIENTS + "too_few_survivors_at_any_stage_is_an_error_and_the_sums_stay_hidden",
    ),
    Mutation(
        "a run that reached stage 3 stays open",
        "protocol/server.py",
        "            if stage < Stage.CONSISTENCY:",
        "            if True:",
        STATE + "lost_requests_are_sent_again_and_the_run_ends",
    ),
    Mutation(
        "nobody is blamed on the word of fewer than may cheat",
        "protocol/server.py",
        "            if len(peers) >= enough",
        "            if len(peers) >= 1",
        CLIENTS + "no_honest_dealer_is_blamed_on_the_word_of_as_many_liars_as_a_run_withstands",
    ),
    Mutation(
        "sums that are half unmasked are never taken for whole",
        "protocol/server.py",
        "            if stage in _SUMS_CHANGE or isinstance(failure, AlreadyUsed):",
        "            if isinstance(failure, AlreadyUsed):",
        "test_server.py::test_sums_whose_masks_are_half_off_are_never_taken_for_whole",
    ),
    Mutation(
        "a vector that is half added is never taken for whole",
        "protocol/server.py",
        "        except BaseException:  # no memory, or interrupted\n            self._fail()\n",
        "        except BaseException:\n",
        "test_server.py::test_a_vector_that_is_half_added_is_never_taken_for_whole",
    ),
    Mutation(
        "a piece of a vector is taken by one thread only",
        "kernels/aes.py",
        "        found = builder.cmpxchg(pointer, args[1], args[2], *two_orderings)\n"
        "        return builder.extract_value(found, 0)",
        "        found = builder.load(pointer)\n"
        '        same = builder.icmp_signed("==", found, args[1])\n'
        "        builder.store(builder.select(same, args[2], found), pointer)\n"
        "        return found",
        "test_kernels.py::test_a_piece_is_taken_by_one_thread_only",
    ),
    # --- unmasking
    Mutation(
        "a share counts only if it matches its dealer's hash",
        "protocol/unmask.py",
        "(found.view(np.uint64) == expected.view(np.uint64)).all(axis=1)",
        "np.ones(len(found), np.bool_)",
        HARM + "[a wrong seed share]",
    ),
    Mutation(
        "a share that is no field element does not count",
        "protocol/unmask.py",
        "        matches &= shamir.canonical(entries[:, :SHARE_BYTES])\n",
        "",
        HARM + "[keeps a share that is no field element]",
    ),
    Mutation(
        "one kind of share per owner is taken",
        "protocol/unmask.py",
        "            if not alive <= opened.survivors or opened.survivors & set(message.key_owners):",
        "            if False:",
        NAMED + "[the other kind of share]",
    ),
    Mutation(
        "shares of those who dealt none are refused",
        "protocol/unmask.py",
        "            if not (alive | set(message.key_owners)) <= set(opened.dealings):",
        "            if False:",
        NAMED + "[shares of a stranger]",
    ),
    Mutation(
        "the number of shares is right",
        "protocol/unmask.py",
        "len(message.seeds) != wanted.seeds * ENTRY or",
        "",
        NAMED + "[a share too few]",
    ),
    Mutation(
        "a wrong share names its sender",
        "protocol/unmask.py",
        'wrong[sender] = f"client {sender} gave a wrong share of client {owner}"',
        "pass",
        NAMED + "[a wrong nonce]",
    ),
    Mutation(
        "a rebuilt secret is the committed one",
        "protocol/unmask.py",
        "            if value is not None and _is_right(opened, secret, value):",
        "            if value is not None:",
        HARM + "[every share off the polynomial]",
    ),
    Mutation(
        "a rebuilt key is the advertised one",
        "protocol/unmask.py",
        "        return AgreementKey.from_private(value).public == opened.adverts[owner].mask",
        "        return True",
        CLIENTS + "a_bad_dealer_costs_only_the_rows_that_need_its_secrets[shares another mask key]",
    ),
    Mutation(
        "a row with a missing secret is lost, not wrong",
        "protocol/unmask.py",
        "        if gaps:",
        "        if False:",
        HARM + "[corrupts every box]",
    ),
    Mutation(
        "a secret needs t good shares",
        "protocol/unmask.py",
        "        if len(holders) < t:",
        "        if len(holders) < 1:",
        CLIENTS + "an_honest_dealer_is_not_blamed_when_too_few_good_shares_came",
    ),
    # --- statements
    *(
        Mutation(
            f"{what} binds {part}",
            "protocol/transcript.py",
            before,
            after,
            BIND + f"everything_that_should_be_bound_is[{what}]",
        )
        for what, part, before, after in (
            ("stage 0 signature", "the training", "            training_id,\n", ""),
            ("stage 0 signature", "the round", '            round.to_bytes(8, "little"),\n', ""),
            ("stage 0 signature", "the roster", "            roster_hash,\n", ""),
            (
                "stage 1 signature",
                "the plan",
                "            labels.SIGN_SHARES,\n            plan_hash,\n",
                "            labels.SIGN_SHARES,\n",
            ),
            ("stage 1 signature", "the commitments", "            *dealing.commitments,\n", ""),
            ("stage 1 signature", "the root", "            dealing.root,\n", ""),
            ("view of U2", "the keys", "u32(dealer.id), advert.channel, advert.mask, ", "u32(dealer.id), "),
            ("view of U2", "the commitments", "*dealer.commitments, dealer.root))", "dealer.root))"),
            ("stage 2 signature", "the plan", "labels.SIGN_VIEW + plan_hash +", "labels.SIGN_VIEW +"),
            ("stage 2 signature", "the disputes", "+ view_digest + disputed", "+ view_digest"),
            (
                "stage 3 signature",
                "the plan",
                "digest(labels.OPENING, plan.hash, bound_view",
                "digest(labels.OPENING, bound_view",
            ),
            (
                "stage 3 signature",
                "the view",
                "plan.hash, bound_view, to_bytes(IDS",
                "plan.hash, to_bytes(IDS",
            ),
            ("stage 3 signature", "the survivors", "bound_view, to_bytes(IDS, survivors), ", "bound_view, "),
            ("stage 3 signature", "the rows", ", to_bytes(ROWS, rows))", ")"),
            (
                "stage 4 signature",
                "the plan",
                "labels.SIGN_UNMASKING + plan_hash +",
                "labels.SIGN_UNMASKING +",
            ),
            (
                "seed commitment",
                "the plan",
                "labels.SEED_COMMITMENT, plan_hash, ",
                "labels.SEED_COMMITMENT, ",
            ),
            ("seed commitment", "the grouping", "u32(owner), u32(grouping), seed)", "u32(owner), seed)"),
            ("share hash", "the plan", "labels.SHARE_LEAF, plan_hash, ", "labels.SHARE_LEAF, "),
            ("share hash", "dealer and holder", "u32(dealer), u32(holder), u32(secret)", "u32(secret)"),
            ("share hash", "which secret", "u32(holder), u32(secret), share", "u32(holder), share"),
        )
    ),
    # --- bytes
    Mutation(
        "no slack after a message",
        "protocol/codec.py",
        "        if self.left:",
        "        if False:",
        FUZZ + "decode_refuses_one_trailing_byte_every_truncation_and_other_versions",
    ),
    Mutation(
        "no message ends early",
        "protocol/codec.py",
        "        if count > self.left:",
        "        if False:",
        FUZZ + "decode_refuses_one_trailing_byte_every_truncation_and_other_versions",
    ),
    Mutation(
        "an unknown wire version is refused",
        "protocol/wire.py",
        "    if version != VERSION:",
        "    if False:",
        FUZZ + "decode_refuses_one_trailing_byte_every_truncation_and_other_versions",
    ),
    Mutation(
        "ids ascend",
        "protocol/codec.py",
        "        if any(a >= b for a, b in pairwise(values)):",
        "        if False:",
        FUZZ + "ids_and_rows_that_are_not_strictly_ascending_are_refused",
    ),
    Mutation(
        "rows ascend",
        "protocol/codec.py",
        "        if any(a >= b for a, b in pairwise(rows)):",
        "        if False:",
        FUZZ + "ids_and_rows_that_are_not_strictly_ascending_are_refused",
    ),
    Mutation(
        "floats are finite and have one encoding",
        "protocol/codec.py",
        "        if not math.isfinite(value) or (value == 0 and math.copysign(1, value) < 0):",
        "        if False:",
        FUZZ + "a_float_that_is_not_finite_or_has_two_encodings_is_refused",
    ),
    # --- sharing, the tree of hashes, and numbers
    *(
        Mutation(claim, file, before, after, test)
        for claim, file, before, after, test in (
            (
                "no holder has index 0",
                "crypto/shamir.py",
                "    if min(points) < 1 or max(points) > MAX_INDEX:",
                "    if max(points) > MAX_INDEX:",
                "test_shamir.py::test_impossible_holders_are_refused",
            ),
            (
                "no two holders have one index",
                "crypto/shamir.py",
                "    if len(set(points)) != len(points):",
                "    if False:",
                "test_shamir.py::test_impossible_holders_are_refused",
            ),
            (
                "shares that are no field elements are not combined",
                "crypto/shamir.py",
                "    if not canonical(rows).all():",
                "    if False:",
                "test_shamir.py::test_what_is_not_a_share_is_refused",
            ),
            (
                "coefficients are drawn by rejection",
                "crypto/shamir.py",
                "candidates[canonical(candidates)]",
                "candidates",
                "test_shamir.py::test_coefficients_are_rejected_only_at_the_prime_and_above",
            ),
            (
                "a node cannot pose as a leaf",
                "crypto/hashtree.py",
                "    return sha256(labels.TREE_LEAF + content).digest()",
                "    return sha256(labels.TREE_NODE + content).digest()",
                "test_hashtree.py::test_a_node_cannot_pose_as_a_leaf",
            ),
            (
                "NaN and infinity are refused",
                "crypto/fixedpoint.py",
                "        if any(infinite for _, infinite in counts):",
                "        if False:",
                "test_fixedpoint.py::test_nan_and_infinity_are_refused_wherever_they_are",
            ),
            (
                "no sum of floats can wrap",
                "crypto/fixedpoint.py",
                "        if clients * largest < HALF_RING and clients * round(largest) < HALF_RING:",
                "        if clients * largest < 2 * HALF_RING:",
                "test_fixedpoint.py::test_the_sum_of_values_at_the_clip_does_not_wrap",
            ),
            (
                "no sum of integers can wrap",
                "crypto/fixedpoint.py",
                "and self.clients * self.bound < HALF_RING):",
                "):",
                "test_fixedpoint.py::test_bounds_that_cannot_work_are_refused",
            ),
            (
                "an integer outside the bound is refused",
                "crypto/fixedpoint.py",
                "        if not all(spread(work,",
                "        if 0 == len(spread(work,",
                "test_fixedpoint.py::test_a_long_vector_of_integers_with_one_outlier_is_refused",
            ),
            (
                "a sparse run from which too many are gone is refused",
                "protocol/client.py",
                "            if plan.sparse_risk(gone=len(plan.ids) - len(ids)) > self._floors.sparse_risk:",
                "            if False:",
                SERVER + "a_sparse_run_from_which_too_many_are_gone_is_refused",
            ),
        )
    ),
    # --- secrets
    Mutation(
        "no repr shows agreement keys",
        "crypto/keys.py",
        "    _private: bytes = field(repr=False)",
        "    _private: bytes",
        "test_keys.py::test_secrets_are_not_in_repr_and_keys_are_not_copied",
    ),
    *(
        Mutation(f"no repr shows {what}", file, before, after, SHOWN)
        for what, file, before, after in (
            (
                "mask keys",
                "protocol/client_state.py",
                "    mask: bytes = field(repr=False)",
                "    mask: bytes",
            ),
            (
                "seeds",
                "protocol/client_state.py",
                "    seeds: tuple[bytes, ...] = field(default=(), repr=False)",
                "    seeds: tuple[bytes, ...] = ()",
            ),
            (
                "shares held",
                "protocol/client_state.py",
                "    shares: bytes = field(repr=False)",
                "    shares: bytes = field()",
            ),
            ("identities", "crypto/keys.py", "    private: bytes = field(repr=False)", "    private: bytes"),
            (
                "shares sent",
                "protocol/messages.py",
                "    seeds: bytes = field(repr=False)",
                "    seeds: bytes",
            ),
            (
                "rebuilt secrets",
                "protocol/unmask.py",
                "    secrets: Mapping[Secret, bytes] = field(repr=False)",
                "    secrets: Mapping[Secret, bytes]",
            ),
        )
    ),
)


# --- running them ----------------------------------------------------------------------------------------


def copy_tree(folder: Path) -> None:
    """The package and its tests, with what numba compiled for them (it goes by the files' times)."""
    for name in ("secagg", "tests"):
        shutil.copytree(
            ROOT / name,
            folder / name,
            ignore=shutil.ignore_patterns("vectors", "fl", "robust") if name == "tests" else None,
        )
    shutil.copy2(ROOT / "pyproject.toml", folder)


@contextmanager
def applied(mutation: Mutation, folder: Path) -> Iterator[None]:
    """The copy with one check taken out, and put back afterwards."""
    path = folder / "secagg" / mutation.file
    original, times = path.read_text(), (path.stat().st_atime, path.stat().st_mtime)
    assert original.count(mutation.before) >= 1, mutation.claim
    path.write_text(original.replace(mutation.before, mutation.after, 1))
    try:
        yield
    finally:
        path.write_text(original)
        os.utime(path, times)


def run_test(test: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """One test in a process of its own, on the copy."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", f"tests/secagg/{test}"]
    environment = {**os.environ, "PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300, check=False
    )


def verdict_of(mutation: Mutation, folder: Path) -> str:
    """'killed', or what went wrong. Exit code 1 is a failing test; anything else is no verdict at all."""
    with applied(mutation, folder):
        done = run_test(mutation.test, folder)
    if done.returncode == 1 and " error" not in done.stdout.splitlines()[-1]:
        return "killed"
    if done.returncode == 0:
        return "SURVIVED"
    return f"NO VERDICT (exit {done.returncode}): {done.stdout[-300:]}{done.stderr[-300:]}"


def run_all(table: tuple[Mutation, ...], *, workers: int = WORKERS) -> dict[Mutation, str]:
    """Every mutation's verdict. The tests must pass on the untouched copy first."""
    with tempfile.TemporaryDirectory() as place:
        folders: Queue[Path] = Queue()
        for number in range(workers):
            copy_tree(Path(place) / str(number))
            folders.put(Path(place) / str(number))

        def judge(mutation: Mutation) -> str:
            folder = folders.get()
            try:
                verdict = verdict_of(mutation, folder)
            finally:
                folders.put(folder)
            print(
                f"{verdict.splitlines()[0]:10} {mutation.claim}  [{mutation.file}; {mutation.test}]",
                flush=True,
            )
            return verdict

        with ThreadPoolExecutor(workers) as pool:
            return dict(zip(table, pool.map(judge, table), strict=True))


def with_table(page: str) -> str:
    """docs/audit.md with the table as it is now."""
    head, _, rest = page.partition(BEGIN)
    return head + BEGIN + markdown() + END + rest.partition(END)[2]


def markdown() -> str:
    """The table as docs/audit.md prints it."""
    lines = ["| claim | check | test that fails without it |", "|---|---|---|"]
    lines += [f"| {m.claim} | `{m.check}` | `{m.test}` |" for m in TABLE]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    if sys.argv[1:] == ["--write"]:
        PAGE.write_text(with_table(PAGE.read_text()))
        sys.exit()
    words = sys.argv[1:]
    chosen = tuple(m for m in TABLE if all(word in f"{m.claim} {m.file} {m.test}" for word in words))
    verdicts = run_all(chosen)
    bad = {m: verdict for m, verdict in verdicts.items() if verdict != "killed"}
    for mutation, verdict in bad.items():
        print(f"\n{mutation.claim} ({mutation.file}): {verdict}")
    print(f"\n{len(verdicts) - len(bad)} of {len(verdicts)} checks have a test that fails without them")
    sys.exit(1 if bad else 0)
