"""What a run found, claim by claim: the JSON file, and the page that is made from it."""

import importlib.metadata
import json
import os
import platform
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cryptography.hazmat.backends.openssl.backend import backend
from jinja2 import Environment, FileSystemLoader, StrictUndefined

import secagg
from tests import mutations
from tests.evidence.pieces import INPUTS
from tests.evidence.run import PARTS
from tests.evidence.state import Result, State, commit

FORMAT = "evidence of the register of claims, version 1"
PACKAGES = ("numpy", "numba", "cryptography", "pynacl", "torch", "flwr", "aiohttp", "hypothesis", "pytest")
EXTERNAL = "tests/secagg/test_external_vectors.py::"
VECTOR = "tests/secagg/test_vectors.py::test_the_vector_holds[{name}.json]"
# From the worst to the best.
STATES = {
    "failed": "A test failed, or passed although the check was disabled.",
    "no evidence": "Not all of its tests ran. This run says nothing about it.",
    "tests only": "Its tests passed. This run did not disable its check.",
    "held": "Its tests passed, and failed when its check was disabled.",
}


def by_function(outcomes: Mapping[str, dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """The outcomes by their tests, and those of a test with parameters also by its name without them."""
    found: dict[str, list[dict[str, Any]]] = {test: [one] for test, one in outcomes.items()}
    for test, one in outcomes.items():
        name, bracket, _ = test.partition("[")
        if bracket:
            found.setdefault(name, []).append(one)
    return found


def of_test(name: str, outcomes: Mapping[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """The outcome of a test of the register. With parameters it is several tests; a failure decides."""
    found = outcomes.get(name, [])
    kinds = {one["outcome"] for one in found}
    outcome = "failed" if "failed" in kinds else "passed" if kinds == {"passed"} else "did not run"
    return {
        "test": name,
        "outcome": outcome,
        "cases": len(found),
        "seconds": round(sum(o["seconds"] for o in found), 2),
    }


def of_claim(
    claim: mutations.Claim, outcomes: Mapping[str, list[dict[str, Any]]], results: Sequence[Result]
) -> dict[str, Any]:
    """One claim with everything that was run for it."""
    tests = [of_test(name, outcomes) for name in claim.tests]
    checks = []
    for mark in claim.marks:
        found = [one for one in results if one.more["claim"] == claim.id and one.more["file"] == mark.file]
        found = [one for one in found if one.more["line"] == mark.line]
        entry = {"file": mark.file, "line": mark.line, "scope": mark.scope}
        ran = {"verdict": found[0].said, "good": found[0].good, "seconds": found[0].seconds} if found else {}
        checks.append({**entry, "verdict": "not run", "good": None, "seconds": 0.0, **ran})
    kinds = {one["outcome"] for one in tests}
    if "failed" in kinds or any(one["good"] is False for one in checks):
        state = "failed"
    elif kinds != {"passed"}:
        state = "no evidence"
    else:
        state = "held" if checks and all(one["good"] for one in checks) else "tests only"
    known = mutations.register()["assumptions"]
    assumptions = {name: known[name] for name in claim.assumptions}
    return {
        "id": claim.id,
        "statement": claim.statement,
        "topic": claim.topic,
        "assumptions": assumptions,
        "state": state,
        "tests": tests,
        "checks": checks,
    }


def topics(state: State) -> list[dict[str, Any]]:
    """The register with what was found, topic by topic."""
    outcomes, results = by_function(state.outcomes()), [one for one in state.results.values() if one.part == "mutation"]
    claims = [of_claim(claim, outcomes, results) for claim in mutations.claims()]
    found = []
    for topic in mutations.register()["topic"]:
        vectors = [of_test(VECTOR.format(name=name), outcomes) for name in topic["vectors"]]
        entry = {key: topic.get(key, "") for key in ("name", "section", "residual", "no_vectors")}
        found.append({**entry, "vectors": vectors, "claims": [one for one in claims if one["topic"] == topic["name"]]})
    return found


def part_of(state: State, part: str, total: int) -> dict[str, Any]:
    """One kind of work: how much of it ran and what came out."""
    results = [one for one in state.results.values() if one.part == part]
    bad = [{"name": one.name, "said": one.said} for one in results if not one.good]
    firsts = [one.more["first seed"] for one in results if "first seed" in one.more]
    lasts = [one.more.get("last seed", one.more["first seed"]) for one in results if "first seed" in one.more]
    seeds = "" if not firsts else f"{min(firsts)} to {max(lasts)}" if max(lasts) > min(firsts) else str(min(firsts))
    said = [{"name": one.name, "said": one.said} for one in results if one.part not in ("mutation", "mutant")]
    seconds = round(sum(one.seconds for one in results), 1)
    names = {"part": part, "name": PARTS[part], "ran": len(results), "total": total, "seeds": seeds}
    return {**names, "seconds": seconds, "failed": bad, "said": said}


def external(state: State) -> dict[str, Any]:
    found = {test: one for test, one in state.outcomes().items() if test.startswith(EXTERNAL)}
    version = importlib.metadata.version("cryptography-vectors")
    failed = [test for test, one in found.items() if one["outcome"] == "failed"]
    return {"source": f"cryptography-vectors {version}", "tests": len(found), "failed": failed}


def suite(state: State) -> dict[str, Any]:
    outcomes = state.outcomes()
    counts = Counter(one["outcome"] for one in outcomes.values())
    failed = sorted(test for test, one in outcomes.items() if one["outcome"] == "failed")
    slowest = sorted(outcomes.values(), key=lambda one: -one["seconds"])[:5]
    ended, seconds = state.run.get("suite", "did not run"), state.run.get("suite seconds", 0.0)
    return {"ended": ended, "counts": dict(counts), "failed": failed, "seconds": seconds, "slowest": slowest}


def versions() -> dict[str, str]:
    found = {"share-secagg": secagg.__version__, "Python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "not installed"
    return {**found, "OpenSSL": backend.openssl_version_text()}


def machine() -> dict[str, Any]:
    info = Path("/proc/cpuinfo")
    names = [line.partition(":")[2].strip() for line in info.read_text().splitlines() if line.startswith("model name")]
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return {
        "system": platform.platform(),
        "processor": (names or [platform.processor()])[0],
        "cores": os.cpu_count(),
        "memory": f"{memory:.1f} GiB",
    }


def collect(state: State, totals: dict[str, int]) -> dict[str, Any]:
    """Everything that the page shows. `totals` has the pieces of work of each part."""
    found, run = topics(state), state.run
    claims = [claim for topic in found for claim in topic["claims"]]
    counts = {name: sum(claim["state"] == name for claim in claims) for name in STATES}
    parts = [part_of(state, part, total) for part, total in totals.items()]
    tests = suite(state)
    complete = run["effort"] == "quick" or (
        counts["held"] == len(claims) and all(p["ran"] == p["total"] for p in parts)
    )
    failed = bool(tests["failed"] or counts["failed"] or any(part["failed"] for part in parts))
    held = tests["ended"] == "passed" and not failed and complete
    return {
        "format": FORMAT,
        "held": held,
        "verdict": "held" if held else "failed" if failed else "incomplete",
        "effort": run["effort"],
        "seed": run["seed"],
        "commit": commit(),
        "tree": run["tree"],
        "started": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(run["started"])),
        "seconds": round(state.spent, 1),
        "load": run.get("load", []),
        "machine": machine(),
        "versions": versions(),
        "claims": counts,
        "inputs per decoder": INPUTS[run["effort"]],
        "suite": tests,
        "external": external(state),
        "parts": parts,
        "topics": found,
    }


def duration(seconds: float) -> str:
    """For people: 0.4 s, 12 s, 3 min 20 s, 2 h 5 min."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


def write(found: dict[str, Any], folder: Path) -> tuple[Path, Path]:
    """Write `evidence.json` and `evidence.html`."""
    data, page = folder / "evidence.json", folder / "evidence.html"
    data.write_text(json.dumps(found, indent=1) + "\n")
    templates = FileSystemLoader(Path(__file__).parent)
    environment = Environment(loader=templates, autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    environment.filters["duration"] = duration
    page.write_text(environment.get_template("page.html").render(found=found, states=STATES))
    return page, data
