"""`python -m pretok`: the same as the `pretok` command."""

from pretok.cli import main

if __name__ == "__main__":
    main()
