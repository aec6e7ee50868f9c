"""The README's code runs as it stands, its commands are real, and its links lead somewhere."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)


@pytest.mark.parametrize("code", BLOCKS, ids=lambda code: code.splitlines()[0])
def test_code_runs_as_it_stands(code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    exec(compile(code, "README.md", "exec"), {"__name__": "__main__"})


def test_there_is_code_to_run() -> None:
    assert BLOCKS


@pytest.mark.parametrize("page", ["README.md", *(f"docs/{p.name}" for p in sorted((ROOT / "docs").glob("*.md")))])
def test_links_lead_somewhere(page: str) -> None:
    text = (ROOT / page).read_text()
    for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", text):
        if "://" not in target:
            assert ((ROOT / page).parent / target).exists(), f"{page}: {target}"


@pytest.mark.parametrize("page", ["embedding.md", "building-blocks.md"])
def test_the_code_of_a_guide_runs_from_top_to_bottom(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    guide = (ROOT / "docs" / page).read_text()
    code = "\n".join(re.findall(r"```python\n(.*?)```", guide, flags=re.DOTALL))
    exec(compile(code, page, "exec"), {"__name__": "__main__"})
