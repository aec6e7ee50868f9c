"""What the values of the packages promise: they do not change, take no other attributes, and say how they compare.

A message, a plan or a result that a caller can change is no evidence of what was sent. A class that holds an array or a
secret compares by identity: `==` of arrays is no truth value, and a comparison of secrets takes a time that depends on
them. The lists below are the exceptions, so that each one is a decision.
"""

import dataclasses
import importlib
import pkgutil
from collections.abc import Iterator

import pytest

import fl.reporting
import fl.secure
import robust
import secagg.agreement
import secagg.crypto
import secagg.exposure
import secagg.protocol
import secagg.whole

PACKAGES = (
    secagg.protocol,
    secagg.whole,
    secagg.agreement,
    secagg.exposure,
    secagg.crypto,
    robust,
    fl.secure,
    fl.reporting,
)
CHANGE = {  # the state of a machine, or a sum that grows
    "secagg.protocol.client_state.ClientMemory",
    "secagg.protocol.server_state.ServerMemory",
    "secagg.protocol.suspects.Suspects",
    "secagg.protocol.unmask.Shares",
    "secagg.whole.client_state.ClientMemory",
    "secagg.whole.server_state.ServerMemory",
    "secagg.exposure.selection._Span",
    "fl.secure.cohort.CellResult",
}
HAVE_A_DICT = {  # for what they compute once and keep, or short-lived
    "secagg.protocol.records.Found",
    "fl.reporting.results.Results",
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
    "secagg.protocol.result.Result",
    "secagg.protocol.unmask.AgreedOpening",
    "secagg.whole.result.WholeResult",
    "secagg.crypto.pulse.Pulse",
    "fl.reporting.records.Folder",
}
BY_IDENTITY = {  # they hold arrays or secrets
    "secagg.protocol.records.Found",
    "secagg.protocol.messages.MaskedInput",
    "secagg.protocol.result.GroupSum",
    "secagg.protocol.result.Result",
    "secagg.protocol.unmask.AgreedOpening",
    "secagg.protocol.unmask.ExpectedShares",
    "secagg.protocol.unmask.ReceivedShares",
    "secagg.protocol.unmask.Rebuilt",
    "secagg.protocol.unmask.Shares",
    "secagg.whole.client_state.Pending",
    "secagg.whole.client_state.Update",
    "secagg.whole.messages.Answer",
    "secagg.whole.result.WholeResult",
    "secagg.crypto.certificates.CertificatePair",
    "secagg.crypto.keys.AgreementKey",
    "secagg.crypto.keys.Identity",
    "secagg.crypto.shamir.Share",
    "robust.attacks.AttackInput",
    "robust.rows.Outcome",
    "robust.rule.Aggregate",
    "robust.rule.Mixed",
    "robust.rule.Prepared",
}
BY_KEYWORD = {  # numbers that a reader could not tell apart by position
    "secagg.protocol.client_state.ClientMemory",
    "secagg.protocol.result.Result",
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
    "secagg.agreement.statistics.kinds.Mean",
    "secagg.agreement.statistics.kinds.Quantiles",
    "secagg.agreement.statistics.kinds.Statistic",
    "secagg.agreement.statistics.kinds.Statistics",
    "secagg.agreement.statistics.kinds.Sum",
    "secagg.agreement.statistics.kinds.Variance",
    "secagg.agreement.statistics.kinds._OfNumbers",
    "secagg.agreement.terms.Terms",
    "secagg.agreement.transport.Transport",
    "secagg.protocol.server_state.ServerMemory",
    "secagg.whole.client_state.ClientMemory",
    "secagg.whole.result.WholeResult",
    "secagg.whole.server_state.ServerMemory",
    "secagg.exposure.audit.Policy",
    "secagg.exposure.audit.Verdict",
    "secagg.exposure.schedules.Schedule",
    "secagg.exposure.seed.Beacon",
    "secagg.exposure.seed.SeedCeremony",
    "secagg.exposure.selection.Limits",
    "secagg.crypto.clipping.SegmentNoise",
    "secagg.crypto.fixedpoint.FixedPoint",
    "secagg.crypto.fixedpoint.Integers",
    "secagg.crypto.segments.Loss",
    "secagg.crypto.segments.Segment",
    "secagg.crypto.segments.Segments",
    "fl.secure.cohort.CellResult",
}


def classes() -> Iterator[tuple[str, type]]:
    for package in PACKAGES:
        for info in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            module = importlib.import_module(info.name)
            for name, value in vars(module).items():
                own = isinstance(value, type) and value.__module__ == info.name
                if own and dataclasses.is_dataclass(value):
                    yield f"{info.name}.{name}", value


FOUND = dict(classes())


@pytest.mark.parametrize(
    ("listed", "has"),
    [
        (CHANGE, lambda cls: not cls.__dataclass_params__.frozen),
        (HAVE_A_DICT, lambda cls: "__slots__" not in vars(cls)),
        (BY_IDENTITY, lambda cls: not cls.__dataclass_params__.eq),
        (BY_KEYWORD, lambda cls: all(field.kw_only for field in dataclasses.fields(cls))),
    ],
    ids=["change", "have a dict", "by identity", "by keyword"],
)
def test_what_a_dataclass_promises(listed: set[str], has: object) -> None:
    found = {name for name, cls in FOUND.items() if has(cls)}  # type: ignore[operator]
    assert not found - listed, "add them to the list above, or change their decorator"
    assert not listed - found, "their decorator has changed, or they are gone: correct the list above"
