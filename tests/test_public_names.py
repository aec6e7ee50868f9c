"""The public names of a package are exactly those that it takes from its modules: none is left out, none is twice."""

import ast
from pathlib import Path
from types import ModuleType

import pytest

import robust
import secagg.agreement
import secagg.crypto
import secagg.evidence
import secagg.exposure
import secagg.privacy
import secagg.protocol
import secagg.statistics
import secagg.whole

PACKAGES = (
    robust,
    secagg.agreement,
    secagg.crypto,
    secagg.evidence,
    secagg.exposure,
    secagg.privacy,
    secagg.protocol,
    secagg.statistics,
    secagg.whole,
)


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.__name__)
def test_a_package_exports_what_it_imports(package: ModuleType) -> None:
    assert package.__file__ is not None
    body = ast.parse(Path(package.__file__).read_text()).body
    taken = [alias.asname or alias.name for node in body if isinstance(node, ast.ImportFrom) for alias in node.names]
    assert sorted(package.__all__) == sorted(taken)
    assert all(hasattr(package, name) for name in package.__all__)
