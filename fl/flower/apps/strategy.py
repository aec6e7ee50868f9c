"""The server's side: a strategy that gets sums of groups where Flower's would get the update of each node.

`SecureStrategy` is put around a strategy of Flower. The inner strategy says what is sent, and how results become the
next model. But where it would get one reply per node it gets one per group: the mean of its members' models and
metrics, weighted as the agreement says. Flower's own loop (`Strategy.start`) runs it.
"""

from collections.abc import Iterable, Mapping
from logging import INFO, WARNING
from pathlib import Path
from typing import Any, Final

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy
from flwr.supercore import log

import robust
from fl.errors import ConfigError, FlowerError
from fl.flower.apps import vectors
from fl.flower.apps.ledger import Ledger
from fl.flower.apps.member import signed_agreement
from fl.flower.apps.messages import OURS
from fl.flower.apps.seats import Seats
from fl.flower.apps.watching import WatchedGrid
from fl.flower.now import Watch
from fl.flower.simulated import refuse_simulation
from secagg import Agreement
from secagg.evidence import EvidenceLog, interrupted
from secagg.protocol import GroupId
from secagg.whole import Server, WholeResult

WEIGHTED_BY: Final = "num-examples"
AGREED: Final = "agreement"  # the key of the run configuration
TIMEOUT: Final = 3600.0  # Flower's own, for the answers of a round


class SecureStrategy(Strategy):
    """Secure, and with `rule` robust, aggregation for an app: `SecureStrategy(FedAvg(), context.run_config)`.

    The run configuration names the signed agreement (`agreement`). It is the same for nodes and server, and part of
    what a sum is bound to.

    `inner` is any strategy of Flower that sends all nodes the same. Who takes part in a round, and with what weight, is
    what the agreement says: `fraction_train` and the numbers of examples of `inner` have no effect. With `rule`, a
    name of `robust.AGGREGATORS`, the means of the groups are combined by that rule, with `options` such as f=1, and
    `inner` gets one result; metrics are then the medians over groups. Without, `inner` combines the groups.

    `record` is the server's folder (default: beside the agreement). It has the round that is used next, so that a
    second run does not ask for rounds that are over, one line per round (`share flower status`), and the evidence
    (docs/evidence.md). After `skips` rounds in a row without any sum the training stops and says why. `join_seconds` is
    how long the first round waits for all members, `hello_seconds` how long a node has to say who it is.
    """

    def __init__(
        self,
        inner: Strategy,
        run_config: Mapping[str, Any],
        *,
        rule: str | None = None,
        record: Path | str | None = None,
        skips: int = 3,
        join_seconds: float = 120.0,
        hello_seconds: float = 120.0,
        **options: Any,
    ) -> None:
        if rule is not None:
            _ = robust.AGGREGATORS[rule]  # UnknownNameError says which names there are
        if skips < 1 or min(join_seconds, hello_seconds) < 0:
            raise ConfigError(f"expected skips of at least 1 and seconds of at least 0, got {skips}, {join_seconds}")
        if not isinstance(run_config.get(AGREED), str):
            raise ConfigError(
                f'expected {AGREED} = "FILE" in the run configuration: below [tool.flwr.app.config] of the app'
            )
        file = Path(run_config[AGREED])
        self.inner, self.rule, self.options, self.skips = inner, rule, options, skips
        self._run_config = dict(run_config)
        self.agreement, signatures = signed_agreement(file)
        self._ledger = Ledger(Path(record) if record else file.with_suffix(".record"), self.agreement)
        self._evidence = EvidenceLog(self._ledger.folder / "evidence", self.agreement, signatures)
        self._server = Server(self.agreement)
        self._watch, self._seconds = Watch(self._ledger.folder), 0.0
        self._seats = Seats(self._server, join_seconds, hello_seconds, self._watch)
        self._arrays: ArrayRecord | None = None
        self._skipped, self._opened = 0, False

    def summary(self) -> None:
        """Log what is summed, and the inner strategy."""
        terms = self.agreement.terms
        log(INFO, "\t├──> Secure sums: %s, fingerprint %s", terms.name, self.agreement.fingerprint.hex())
        log(INFO, "\t│\t└──%d members in groups of %d", len(terms.members), terms.schedule.size)
        log(INFO, "\t├──> Groups combined by: %s", self.rule or type(self.inner).__name__)
        self.inner.summary()

    def start(self, grid: Grid, initial_arrays: ArrayRecord, *more: Any, **options: Any) -> Result:
        """Flower's loop, with a grid that shows who has answered while a round is under way."""
        refuse_simulation(grid)
        self._seconds = float(more[1] if len(more) > 1 else options.get("timeout", TIMEOUT))
        return super().start(WatchedGrid(grid, self._seats.told), initial_arrays, *more, **options)  # type: ignore

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Say hello where it is needed, and begin a round of secure aggregation."""
        return self._begin(vectors.TRAIN, server_round, arrays, config, grid)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """As for training. If the agreement has no metrics of evaluation, nothing is asked."""
        if not vectors.metric_names(self.agreement.terms, vectors.EVALUATE):
            if server_round == 1:
                log(INFO, "share: the agreement has no metrics of evaluation, so nodes are not asked to evaluate")
            return []
        return self._begin(vectors.EVALUATE, server_round, arrays, config, grid)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Open the sums, and let the inner strategy make the next model of them."""
        found = self._close(vectors.TRAIN, server_round, replies)
        return self.inner.aggregate_train(server_round, found) if found else (None, None)

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Open the sums of the metrics."""
        found = self._close(vectors.EVALUATE, server_round, replies)
        return self.inner.aggregate_evaluate(server_round, found) if found else None

    # --- a round -------------------------------------------------------------------------------------

    def _begin(
        self, kind: str, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        refuse_simulation(grid)
        size = sum(array.numpy().size for array in arrays.values())
        if size != self.agreement.terms.segments[0].length:
            raise ConfigError(
                f"the model has {size} values, but the agreement has {self.agreement.terms.segments[0].length}: make "
                "an agreement for this model with `share flower propose`"
            )
        self._ledger.check()
        self._watch.shown = server_round
        self._seats.gather(self._ledger.next, grid)
        if self._seats.strange_mistakes and not self._opened:
            raise FlowerError(f"the training stops, because waiting does not help: {self._seats.strange_mistakes}")
        configure = self.inner.configure_train if kind == vectors.TRAIN else self.inner.configure_evaluate
        asked = list(configure(server_round, arrays, config, _Everybody(self.agreement, self.inner)))  # type: ignore
        if not asked:
            return []  # the inner strategy wants no such round
        content, message_type = _same_for_all(asked), asked[0].metadata.message_type
        self._arrays = arrays
        round = self._ledger.claim()
        self._evidence.append([interrupted(self.agreement, round, "the server stopped before the round was over")])
        weighted_by = str(getattr(self.inner, "weighted_by_key", WEIGHTED_BY))
        return self._seats.begin(round, message_type, content, self._run_config, weighted_by, self._seconds)

    def _close(self, kind: str, server_round: int, replies: Iterable[Message]) -> list[Message]:
        """One message for each group that opened, or for the robust result; none if the round was skipped."""
        if not self._seats.open:
            return []
        result, seats = self._seats.close(replies), self._seats
        self._evidence.append([result.record])  # in the place of the one that says that the server stopped
        self._ledger.write(kind, server_round, result, seats.reasons, seats.connected)
        reasons = {client: seats.reasons.get(client, why) for client, why in result.dropouts.items()}
        told = "; ".join(f"{self._name(client)}: {why}" for client, why in reasons.items())
        if seats.mistakes and not self._opened:  # nothing is lost yet
            raise FlowerError(f"the training stops, because waiting does not help: {told}")
        if not result.groups:
            self._skip(told or result.skipped)
            return []
        self._opened, self._skipped = True, 0
        count = f"{len(result.groups)} of {len(result.groups) + len(result.lost)} sums opened"
        log(WARNING if told else INFO, "share: %s%s", count, f"; {told}" if told else "")
        return [self._as_reply(kind, row, weight) for row, weight in self._combined(result)]

    def _skip(self, why: str) -> None:
        self._skipped += 1
        log(WARNING, "share: round skipped, the model stays as it was: %s", why)
        if self._skipped >= self.skips:
            raise FlowerError(f"{self._skipped} rounds in a row gave no sum, so the training stops: {why}")

    def _name(self, client: int) -> str:
        found = next(member.name for member in self.agreement.terms.members if member.id == client)
        return found or f"client {client}"

    def _as_reply(self, kind: str, row: vectors.Flat, weight: float) -> Message:
        """A group's mean as a message of one node, with the metrics of this kind of request."""
        terms, weighted_by = self.agreement.terms, getattr(self.inner, "weighted_by_key", WEIGHTED_BY)
        length = terms.segments[0].length
        metrics = vectors.metrics_of(terms, kind, row)
        assert self._arrays is not None
        arrays = vectors.moved(self._arrays, row[:length]) if kind == vectors.TRAIN else None
        return Message(vectors.reply_of(arrays, metrics, weight, weighted_by), 0, kind)

    def _combined(self, result: WholeResult) -> list[tuple[vectors.Flat, float]]:
        """The vectors that the inner strategy gets, with their weights: one per group, or one by the rule."""
        terms = self.agreement.terms
        rows = {group: _row(result, group) for group in sorted(result.groups)}
        weights = {group: float(sum(terms.weights[v] for v in part.members)) for group, part in result.groups.items()}
        if self.rule is None:
            return [(rows[group], weights[group]) for group in rows]
        length, found = terms.segments[0].length, []
        for grouping in sorted({group[0] for group in rows}):
            chosen = np.stack([row for group, row in rows.items() if group[0] == grouping])
            try:
                update = robust.aggregate(self.rule, chosen[:, :length], **self._parameters(len(chosen))).vector
            except robust.RowsError as error:
                if error.rule != self.rule:  # the function of the rule called another
                    raise
                log(WARNING, "share: the rule %s gives nothing for grouping %d: %s", self.rule, grouping, error)
                continue
            found.append(np.concatenate([update, np.median(chosen[:, length:], axis=0)]))
        return [(np.mean(found, axis=0), sum(weights.values()))] if found else []

    def _parameters(self, groups: int) -> Mapping[str, Any]:
        """The options of the rule. Where f is needed and not given, it is the most that the rule withstands."""
        assert self.rule is not None
        if "f" in self.options or "f" not in robust.AGGREGATORS[self.rule].parameters:
            return self.options
        return {**self.options, "f": robust.tolerance.withstands(self.rule, groups)}


class _Everybody:
    """A grid with as many nodes as the inner strategy waits for. It is only asked what it would send."""

    def __init__(self, agreement: Agreement, inner: Strategy) -> None:
        wanted = ("min_available_nodes", "min_train_nodes", "min_evaluate_nodes")
        self._count = max(len(agreement.terms.members), *(int(getattr(inner, name, 0)) for name in wanted))

    def get_node_ids(self) -> list[int]:
        return list(range(1, self._count + 1))


def _row(result: WholeResult, group: GroupId) -> vectors.Flat:
    terms = result.agreement.terms
    row: vectors.Flat = result.mean(group, out=np.empty(terms.length, np.float32))
    return row


def _same_for_all(messages: list[Message]) -> RecordDict:
    """What the inner strategy sends. In a secure sum, everybody must have got the same."""
    first = messages[0].content
    if any(message.content is not first and dict(message.content) != dict(first) for message in messages):
        raise ConfigError("the inner strategy sends nodes different contents; secure sums need the same for all")
    if OURS & set(first):
        raise ConfigError(f"the app's records must not be named {' or '.join(sorted(OURS))}")
    return first
