"""Every public name has a docstring with an example that runs, and docs/api/ prints them."""

import doctest
import importlib
import inspect

import pytest

import secagg
from tests.api import FOLDER, PACKAGES, documented, pages, public_names

ENTRIES = {
    thing: f"{package}.{name}"
    for package in reversed(PACKAGES)
    for name, thing in public_names(package)
    if documented(thing)
}


def needs_example(thing: object) -> bool:
    """Errors and interfaces are not called; `Client` and `Server` make the messages, not their users."""
    if thing.__module__ in ("secagg.protocol.messages", "secagg.whole.messages"):
        return False
    interface = getattr(thing, "_is_protocol", False)
    return not (inspect.isclass(thing) and (issubclass(thing, BaseException) or interface))


@pytest.mark.parametrize("thing", ENTRIES, ids=ENTRIES.values())
def test_every_public_name_has_a_docstring_with_an_example_that_runs(thing: object) -> None:
    text = inspect.getdoc(thing)
    assert text, "no docstring"
    if needs_example(thing):
        assert ">>> " in text, "no example"
    module = importlib.import_module(thing.__module__)
    for found in doctest.DocTestFinder(recurse=inspect.isclass(thing)).find(thing, globs=dict(vars(module))):
        result = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(found)
        assert result.failed == 0, found.name


def test_the_reference_is_what_the_docstrings_say() -> None:
    """`python -m tests.api` brings docs/api/ up to date."""
    made = pages()
    assert {path.name for path in FOLDER.glob("*")} == set(made)
    for name, text in made.items():
        assert (FOLDER / name).read_text() == text, f"docs/api/{name} is out of date: python -m tests.api"


def test_every_public_name_and_room_of_secagg_is_found_after_a_plain_import() -> None:

    for name in dir(secagg):
        assert getattr(secagg, name) is not None
    assert set(secagg.__all__) <= set(dir(secagg))
    with pytest.raises(AttributeError, match="module 'secagg' has no attribute 'Clinet'"):
        _ = secagg.Clinet
