"""The `pretok` command, also as `python -m pretok`: a signal ends it with 75 before anything else is loaded."""

from pretok.base.begin import end_with_75, interrupted


def main() -> None:
    """Console entry point; ends the process with one of the exit codes of docs/running.md."""
    try:
        end_with_75()
        from pretok.cli import main

        main()
    except KeyboardInterrupt:  # before or after the command itself
        interrupted()


if __name__ == "__main__":
    main()
