"""What the values of the packages promise: they do not change, take no other attributes, and say how they compare.

A message, a plan or a result that a caller can change is no evidence of what was sent. A class that holds an array or a
secret compares by identity: `==` of arrays is no truth value, and a comparison of secrets takes a time that depends on
them. The lists below are the exceptions, so that each one is a decision.
"""

import ast
import dataclasses
import importlib
import pkgutil
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import fl
import robust
import secagg

ROOT = Path(__file__).parents[1]
PACKAGES = (secagg, robust, fl)
CHANGE = {  # the state of a machine, or a sum that grows
    "fl.flower.federation.Federation",
    "fl.flower.network.Flight",
    "fl.flower.network.Network",
    "fl.flower.now.Watch",
    "fl.flower.status.NodeStatus",
    "fl.flower.survivors.CellRun",
    "fl.secure.cohort.CellResult",
    "secagg.evidence.rounds.CheckedRound",
    "secagg.evidence.run_check.CheckedRun",
    "secagg.exposure.selection._Span",
    "secagg.net.desk.Box",
    "secagg.net.hub_survivors.Run",
    "secagg.protocol.client_state.ClientMemory",
    "secagg.protocol.server_state.ServerMemory",
    "secagg.protocol.suspects.Suspects",
    "secagg.protocol.unmask.Shares",
    "secagg.reference.Party",
    "secagg.reference.Transcript",
    "secagg.simulation.cost.Cost",
    "secagg.whole.client_state.ClientMemory",
    "secagg.whole.server_state.ServerMemory",
}
HAVE_A_DICT = {  # for what they compute once and keep, or short-lived
    "fl.config.grid.Sweep",
    "fl.flower.deadlines.Deadlines",
    "fl.flower.federation.Federation",
    "fl.flower.supernode.Executor",
    "fl.flower.training.Training",
    "fl.reporting.records.Folder",
    "fl.reporting.results.Results",
    "fl.sweeps.estimate.Estimate",
    "fl.sweeps.folder.Runs",
    "fl.sweeps.sweep.Swept",
    "secagg.agreement.agreement.Agreement",
    "secagg.agreement.floors.Floors",
    "secagg.agreement.noise.Noise",
    "secagg.agreement.plan.Plan",
    "secagg.agreement.proposal.Proposal",
    "secagg.agreement.section.Section",
    "secagg.agreement.statistics.kinds.Contingency",
    "secagg.agreement.statistics.kinds.Count",
    "secagg.agreement.statistics.kinds.Histogram",
    "secagg.agreement.statistics.kinds.LeastSquares",
    "secagg.agreement.statistics.kinds.Mean",
    "secagg.agreement.statistics.kinds.Quantiles",
    "secagg.agreement.statistics.kinds.Statistic",
    "secagg.agreement.statistics.kinds.Statistics",
    "secagg.agreement.statistics.kinds.Sum",
    "secagg.agreement.statistics.kinds.Variance",
    "secagg.agreement.statistics.kinds._OfNumbers",
    "secagg.agreement.terms.Terms",
    "secagg.agreement.transport.Transport",
    "secagg.crypto.pulse.Pulse",
    "secagg.evidence.blame.Court",
    "secagg.evidence.file.Evidence",
    "secagg.evidence.verify.Report",
    "secagg.net.outcome.Outcome",
    "secagg.net.settings.Deadlines",
    "secagg.net.settings.Limits",
    "secagg.net.settings.Settings",
    "secagg.privacy.budget.Budget",
    "secagg.protocol.records.Found",
    "secagg.protocol.result.Result",
    "secagg.protocol.unmask.AgreedOpening",
    "secagg.reference.Party",
    "secagg.reference.Transcript",
    "secagg.whole.result.WholeResult",
}
BY_IDENTITY = {  # they hold arrays or secrets
    "fl.data.examples.DataSet",
    "fl.data.examples.Examples",
    "fl.data.examples.Federated",
    "fl.training.aggregation.Decision",
    "fl.training.loop.Trained",
    "fl.training.round.Played",
    "fl.training.task.Task",
    "fl.training.workers._Request",
    "robust.attacks.AttackInput",
    "robust.rows.Outcome",
    "robust.rule.Aggregate",
    "robust.rule.Mixed",
    "robust.rule.Prepared",
    "secagg.crypto.certificates.CertificatePair",
    "secagg.crypto.keys.AgreementKey",
    "secagg.crypto.keys.Identity",
    "secagg.crypto.shamir.Share",
    "secagg.evidence.blame.Court",
    "secagg.net.outcome.Outcome",
    "secagg.protocol.messages.MaskedInput",
    "secagg.protocol.records.Found",
    "secagg.protocol.result.GroupSum",
    "secagg.protocol.result.Result",
    "secagg.protocol.unmask.AgreedOpening",
    "secagg.protocol.unmask.ExpectedShares",
    "secagg.protocol.unmask.Rebuilt",
    "secagg.protocol.unmask.ReceivedShares",
    "secagg.protocol.unmask.Shares",
    "secagg.simulation.clients.Answer",
    "secagg.simulation.whole_workers.Answered",
    "secagg.statistics.site.SiteUpdate",
    "secagg.whole.client_state.Pending",
    "secagg.whole.client_state.Update",
    "secagg.whole.messages.Answer",
    "secagg.whole.result.WholeResult",
}
BY_KEYWORD = {  # numbers that a reader could not tell apart by position
    "fl.data.folder.Source",
    "fl.planner.Candidate",
    "fl.planner.Question",
    "fl.secure.cohort.CellResult",
    "fl.training.task.LocalTraining",
    "secagg.agreement.agreement.Agreement",
    "secagg.agreement.audit.Permitted",
    "secagg.agreement.beacon.NamedPulse",
    "secagg.agreement.floors.Floors",
    "secagg.agreement.graph.Sparse",
    "secagg.agreement.noise.Noise",
    "secagg.agreement.plan.Plan",
    "secagg.agreement.proposal.Proposal",
    "secagg.agreement.statistics.kinds.Contingency",
    "secagg.agreement.statistics.kinds.Count",
    "secagg.agreement.statistics.kinds.Histogram",
    "secagg.agreement.statistics.kinds.LeastSquares",
    "secagg.agreement.statistics.kinds.Quantiles",
    "secagg.agreement.statistics.kinds.Statistic",
    "secagg.agreement.statistics.kinds.Statistics",
    "secagg.agreement.statistics.kinds._OfNumbers",
    "secagg.agreement.terms.Terms",
    "secagg.agreement.transport.Transport",
    "secagg.crypto.clipping.SegmentNoise",
    "secagg.crypto.fixedpoint.FixedPoint",
    "secagg.crypto.fixedpoint.Integers",
    "secagg.crypto.segments.Loss",
    "secagg.crypto.segments.Segment",
    "secagg.crypto.segments.Segments",
    "secagg.evidence.file.Evidence",
    "secagg.evidence.record.RoundRecord",
    "secagg.evidence.runs.RunRecord",
    "secagg.evidence.verify.Report",
    "secagg.exposure.audit.Policy",
    "secagg.exposure.audit.Verdict",
    "secagg.exposure.schedules.Schedule",
    "secagg.exposure.seed.Beacon",
    "secagg.exposure.seed.SeedCeremony",
    "secagg.exposure.selection.Limits",
    "secagg.net.answers.Membership",
    "secagg.net.outcome.Outcome",
    "secagg.net.settings.Deadlines",
    "secagg.net.settings.Limits",
    "secagg.net.settings.Settings",
    "secagg.protocol.client_state.ClientMemory",
    "secagg.protocol.result.Result",
    "secagg.protocol.server_state.ServerMemory",
    "secagg.statistics.csvfile.CsvFormat",
    "secagg.statistics.outcomes.Counted",
    "secagg.statistics.outcomes.Counts",
    "secagg.statistics.outcomes.CrossCounts",
    "secagg.statistics.outcomes.Fit",
    "secagg.statistics.outcomes.Moments",
    "secagg.statistics.outcomes.Outcome",
    "secagg.statistics.outcomes.QuantileList",
    "secagg.statistics.report.Report",
    "secagg.whole.client_state.ClientMemory",
    "secagg.whole.result.WholeResult",
    "secagg.whole.server_state.ServerMemory",
}

NOT_SHOWN = {  # secrets and updates, and what is too long to read in an error
    "fl.flower.apps.member.AppNode": {"signatures"},
    "fl.flower.client.Session": {"context", "parts"},
    "fl.flower.envelope.Envelope": {"parts"},
    "fl.flower.survivors.RoundInput": {"model"},
    "fl.flower.training.Training": {"signatures", "_plans"},
    "fl.reporting.records.Checkpoint": {"history"},
    "fl.training.loop.Trained": {"task", "x", "history"},
    "secagg.agreement.agreement.Agreement": {"_drawn", "_judged", "_checked"},
    "secagg.crypto.certificates.CertificatePair": {"key"},
    "secagg.crypto.keys.AgreementKey": {"_private"},
    "secagg.crypto.keys.Identity": {"private", "_key"},
    "secagg.crypto.segments.Segments": {"encodings", "length"},
    "secagg.crypto.shamir.Share": {"value"},
    "secagg.evidence.file.Evidence": {"rounds", "runs"},
    "secagg.evidence.runs.ShownShare": {"share", "nonce"},
    "secagg.evidence.runs.WrongUnmasking": {"own", "seeds", "keys"},
    "secagg.exposure.audit.Revealed": {"leverage"},
    "secagg.exposure.audit.Verdict": {"leverage"},
    "secagg.net.answers.Wanted": {"data", "token"},
    "secagg.net.desk.Box": {"message", "notes"},
    "secagg.net.hub_survivors.Lost": {"record"},
    "secagg.net.invitation.Invitation": {"token"},
    "secagg.net.messages.Begin": {"data"},
    "secagg.net.outcome.Outcome": {"sums", "groups", "results", "terms", "records"},
    "secagg.protocol.client_state.ClientMemory": {"channel", "mask", "seeds", "held", "answer"},
    "secagg.protocol.client_state.FromApplication": {"encoded"},
    "secagg.protocol.dealing.HeldShares": {"nonce", "shares"},
    "secagg.protocol.messages.Bundle": {"boxes", "proofs"},
    "secagg.protocol.messages.Dealing": {"hashes", "boxes"},
    "secagg.protocol.messages.MaskedInput": {"vectors"},
    "secagg.protocol.messages.Unmasking": {"own", "seeds", "keys"},
    "secagg.protocol.result.GroupSum": {"total"},
    "secagg.protocol.result.Result": {"record"},
    "secagg.protocol.server_state.ServerMemory": {"sums"},
    "secagg.protocol.unmask.Rebuilt": {"secrets"},
    "secagg.protocol.unmask.ReceivedShares": {"shares"},
    "secagg.protocol.unmask.Shares": {"by_holder", "own"},
    "secagg.reference.Party": {"identity", "entropy", "channel", "mask", "seeds", "held"},
    "secagg.statistics.site.SiteUpdate": {"update", "rows", "warnings"},
    "secagg.whole.client_checks.Accepted": {"private"},
    "secagg.whole.client_state.ClientMemory": {"keys"},
    "secagg.whole.client_state.PrivateKey": {"private"},
    "secagg.whole.client_state.Task": {"data"},
    "secagg.whole.client_state.Update": {"values"},
    "secagg.whole.messages.Answer": {"vectors"},
    "secagg.whole.messages.Round": {"data"},
    "secagg.whole.result.WholeResult": {"record"},
    "secagg.whole.server_state.ServerMemory": {"data", "sums"},
}
NOT_GIVEN = {  # computed by the object itself
    "fl.flower.training.Training": {"_plans"},
    "secagg.agreement.agreement.Agreement": {"_drawn", "_judged", "_checked"},
    "secagg.agreement.graph.Sparse": {"assumes"},
    "secagg.crypto.keys.Identity": {"_key"},
    "secagg.crypto.segments.Segments": {"encodings", "length"},
}
NOT_COMPARED = {  # kept for speed, or where it was read
    "fl.config.grid.Sweep": {"place"},
    "fl.flower.training.Training": {"_plans"},
    "secagg.agreement.agreement.Agreement": {"_drawn", "_judged", "_checked"},
    "secagg.agreement.prospects._Trial": {"_drawn"},
    "secagg.crypto.segments.Segments": {"encodings", "length"},
}


@cache
def classes(package: ModuleType) -> dict[str, type]:
    """Every dataclass of a package by its full name."""
    return dict(found(package))


def found(package: ModuleType) -> Iterator[tuple[str, type]]:
    for info in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        if info.name.endswith("__main__"):
            continue
        module = importlib.import_module(info.name)
        for name, value in vars(module).items():
            own = isinstance(value, type) and value.__module__ == info.name
            if own and "__dataclass_params__" in vars(value):  # a class without the decorator may inherit one
                yield f"{info.name}.{name}", value


def own_fields(cls: Any) -> list[dataclasses.Field[Any]]:
    """The fields that a class declares itself."""
    return [field for field in dataclasses.fields(cls) if field.name in vars(cls).get("__annotations__", ())]


def is_by_keyword(cls: type) -> bool:
    """Whether its own fields are given by name. A class without fields of its own has no say in this."""
    return bool(own_fields(cls)) and all(field.kw_only for field in own_fields(cls))


@pytest.mark.parametrize(
    ("listed", "has"),
    [
        (CHANGE, lambda cls: not cls.__dataclass_params__.frozen),
        (HAVE_A_DICT, lambda cls: "__slots__" not in vars(cls)),
        (BY_IDENTITY, lambda cls: not cls.__dataclass_params__.eq),
        (BY_KEYWORD, is_by_keyword),
    ],
    ids=["change", "have a dict", "by identity", "by keyword"],
)
@pytest.mark.parametrize("package", PACKAGES)
def test_what_a_dataclass_promises(package: ModuleType, listed: set[str], has: Callable[[Any], bool]) -> None:
    those = {name for name, cls in classes(package).items() if has(cls)}
    expected = {name for name in listed if name.startswith(f"{package.__name__}.")}
    assert not those - expected, "add them to the list above, or change their decorator"
    assert not expected - those, "their decorator has changed, or they are gone: correct the list above"


@pytest.mark.parametrize(
    ("listed", "is_so"),
    [
        (NOT_SHOWN, lambda field: field.repr),
        (NOT_GIVEN, lambda field: field.init),
        (NOT_COMPARED, lambda field: field.compare),
    ],
    ids=["not shown", "not given", "not compared"],
)
@pytest.mark.parametrize("package", PACKAGES)
def test_which_fields_are_not_like_others(
    package: ModuleType, listed: dict[str, set[str]], is_so: Callable[[Any], bool]
) -> None:
    those = {
        name: {field.name for field in own_fields(cls) if not is_so(field)} for name, cls in classes(package).items()
    }
    expected = {name: fields for name, fields in listed.items() if name.startswith(f"{package.__name__}.")}
    assert {name: fields for name, fields in those.items() if fields} == expected


@pytest.mark.parametrize("package", PACKAGES)
def test_every_dataclass_of_the_sources_is_judged(package: ModuleType) -> None:
    """None is missed because it stands in a function, in another class, or under a name that is used twice."""
    written = Counter(
        str(path.relative_to(ROOT).with_suffix("")).replace("/", ".")
        for path in (ROOT / package.__name__).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef) and any("dataclass" in ast.unparse(one) for one in node.decorator_list)
    )
    assert written == Counter(name.rpartition(".")[0] for name in classes(package))
