"""Write the test vectors: `python -m tests.secagg.make_vectors`. A test fails if a byte would change."""

from pathlib import Path

from tests.secagg import vector_evidence, vector_noise, vector_primitives, vector_refusals, vector_runs, vector_whole
from tests.secagg.vector_case import Case, Recipe

FOLDER = Path(__file__).parents[1] / "vectors"


def all_cases() -> list[Case]:
    """Complete runs first: the other cases start from some of them."""
    runs = [*vector_runs.complete_runs(), *vector_whole.whole_runs(), vector_noise.noise_run()]
    bases = {case.name: case for case in runs}
    modules = (vector_primitives, vector_runs, vector_refusals, vector_whole, vector_noise, vector_evidence)
    recipes = [found for module in modules for found in vars(module).values() if isinstance(found, Recipe)]
    return [*runs, *(recipe.make(bases) for recipe in recipes)]


def texts() -> dict[str, str]:
    """The name and content of every file."""
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
