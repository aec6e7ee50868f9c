"""`share flower new`: a complete app to start from. The files are in example_app/ beside this module."""

from pathlib import Path

from fl.errors import ConfigError

TEMPLATES = Path(__file__).parent / "example_app"


def write_example(folder: Path) -> list[Path]:
    """Write the files of the app to a folder that is new or empty, and return their paths."""
    if folder.exists() and any(folder.iterdir()):
        raise ConfigError(f"{folder} is not empty; choose a new folder")
    templates = sorted(TEMPLATES.rglob("*.template"))
    contents = {file.relative_to(TEMPLATES).with_suffix(""): file.read_text("utf-8") for file in templates}
    contents[Path(".gitignore")] = "run/\n*.key\n__pycache__/\n"
    for name, text in contents.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, "utf-8")
    (folder / "on-this-machine").chmod(0o755)
    return [folder / name for name in contents]
