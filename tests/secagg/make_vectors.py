"""Write the test vectors: `python -m tests.secagg.make_vectors`. The suite fails if a byte would change."""

from __future__ import annotations

from pathlib import Path

from tests.secagg import vector_primitives
from tests.secagg.vector_case import Case

FOLDER = Path(__file__).parents[1] / "vectors"


def all_cases() -> list[Case]:
    return [*vector_primitives.all_cases()]


def texts() -> dict[str, str]:
    """Every file's name and content."""
    cases = all_cases()
    made = {f"{case.name}.json": case.text() for case in cases}
    assert len(made) == len(cases), "two cases have one name"
    return made


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    made = texts()
    for stale in FOLDER.glob("*.json"):
        if stale.name not in made:
            stale.unlink()
    for name, text in made.items():
        (FOLDER / name).write_text(text, "ascii")
    print(f"{len(made)} files, {sum(map(len, made.values())):,} bytes in {FOLDER}")


if __name__ == "__main__":
    main()
