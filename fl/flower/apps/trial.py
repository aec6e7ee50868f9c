"""`share flower try`: an app that uses secure sums, with a SuperLink and SuperNodes on this machine."""

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from fl.errors import ConfigError, FlowerError
from fl.flower.federation import Federation
from fl.flower.node import make_node
from fl.flower.training import AGREEMENT
from secagg import Terms
from secagg.agreement import Proposal, Signature, write_agreement
from secagg.simulation import agree_on


def agree_in(place: Path, terms: Terms) -> list[Path]:
    """Make the keys of all members and their agreement, each in a folder of its own. Returns the folders.

    The identities in the terms are replaced by new ones.
    """
    folders = [place / f"node-{member.id}" for member in terms.members]
    identities = {member.id: make_node(folder) for member, folder in zip(terms.members, folders, strict=True)}
    members = (replace(member, identity=identities[member.id].public) for member in terms.members)
    agreement = agree_on(replace(terms, members=tuple(members)), identities)
    signed = Proposal.of(agreement).add(Signature(i, agreement.sign(i, one)) for i, one in identities.items())
    for folder in (place, *folders):
        (folder / AGREEMENT).write_text(write_agreement(signed), "utf-8")
    return folders


def try_app(app: Path, terms: Terms, settings: Sequence[str] = ()) -> None:
    """Run an app with one node per member. What the app prints is shown when the run has ended."""
    if not (app / "pyproject.toml").exists():
        raise ConfigError(f"{app} is not a Flower app: it has no pyproject.toml")
    app = app.resolve()  # Flower's command runs in another folder
    with ExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="share-flower-")))
        folders = agree_in(place, terms)
        federation = stack.enter_context(Federation(place, temporary=True, expected=len(folders)))
        print(f"share: starting a SuperLink and {len(folders)} SuperNodes", file=sys.stderr, flush=True)
        federation.start_link()
        for number, folder in enumerate(folders):
            partition = f"partition-id={number} num-partitions={len(folders)}"
            federation.start_node(number, folder, "--node-config", partition)
        process = federation.run(app, [f"agreement={json.dumps(str(place / AGREEMENT))}", *settings])
        seen = 0
        while True:
            over = _ended(process)
            text = federation.log("run")
            sys.stdout.write(text[seen:])
            sys.stdout.flush()
            seen = len(text)
            if over:
                break
        rounds = place / "agreement.record" / "rounds.jsonl"
        if process.returncode or not rounds.exists():
            nodes = [line for number in range(len(folders)) for line in federation.log(f"node-{number}").splitlines()]
            told = sorted({line.split("share: ", 1)[1] for line in nodes if "share: " in line})
            raise FlowerError("the app gave no secure sum" + "".join(f"\n  on a node: {line}" for line in told[:5]))
        if failed(text):
            raise FlowerError("the app ended with an error; see the output above")


def failed(text: str) -> bool:
    """Whether the output of Flower's command reports that the app failed. Its exit code does not.

    >>> failed("INFO: done"), failed("ERROR :     Exit Code: 201")
    (False, True)
    """
    return re.search(r"Exit Code: [1-9]", text) is not None


def _ended(process: subprocess.Popen[bytes]) -> bool:
    try:
        process.wait(0.5)
    except subprocess.TimeoutExpired:
        return False
    return True
