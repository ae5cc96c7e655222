"""The version of the program, as files and logs name it; pyproject.toml says the same."""

PRETOK_VERSION = "0.1.0"
