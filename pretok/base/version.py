"""The version of the program, as files and logs name it; pyproject.toml takes it from here."""

PRETOK_VERSION = "0.1.0"
