"""Italian and English sample text, written for this project and under its licence: `it.jsonl`, `en.jsonl`."""

from pathlib import Path

from pretok.base.errors import UsageError


def sample_path(language: str) -> str:
    """Path of the sample in `language`. UsageError names the languages there are."""
    path = Path(__file__).with_name(f"{language}.jsonl")
    if not path.exists():
        known = ", ".join(sorted(p.stem for p in path.parent.glob("*.jsonl")))
        raise UsageError(f"no sample text in {language!r}; languages: {known}")
    return str(path)
