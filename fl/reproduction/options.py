"""The options of `share reproduce`, apart from the command, because `share --help` loads no package of an extra."""

from collections.abc import Callable
from pathlib import Path
from typing import Any


def add_options(option: Callable[..., Any], setting: dict[str, Any]) -> None:
    """The options of the command; `setting` is how every command takes `--set`."""
    option("names", nargs="*", metavar="NAME", help="panels, or single curves; without a name, the panels are listed")
    option("--rounds", type=int, default=10, help="train every curve to this round (10)")
    option("--time", default="", metavar="TIME", help="stop after this time, such as 150m; the same command continues")
    option("--out", type=Path, default=Path("reproduction"), help="folder for the runs, the page and the tables")
    option("--secure", action="store_true", help="with real secure aggregation: the same curves, in more time")
    option("--only-write", action="store_true", help="train nothing; write the page and the tables, of NAMEs alone")
    joined = "also show the curves of another folder, such as one of another machine; of each curve the longest"
    option("--join", type=Path, action="append", default=[], metavar="reproduction.json", help=joined)
    option("--set", **setting)
    option("--json", action="store_true", help="print the table, or the list of panels, as JSON")
