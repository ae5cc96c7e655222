"""The errors of this program, and the exit code of each.

    PretokError
    ├── UsageError        2   wrong command line, recipe or input; nothing was done
    ├── MismatchError     2   what is on disk belongs to another input, config or tokenizer
    ├── IntegrityError    2   a file of ours is damaged, or not in our format
    ├── OutputError       2   a file of ours cannot be written: read-only, no permission, a folder has its name
    │   └── NoSpace      75   the same, because the disk or the quota is full
    ├── PartitionsFailed  3   the job finished, but not the named partitions, or it found less than was asked for
    │   └── DamagedInput  3   inputs cannot be read to their end
    ├── InternalError     1   a bug of ours in some partitions; the others are done
    ├── FolderInUse      75   another job writes to the output folder, or reads what would change
    └── Stopped          75   stopped early by a signal or a time limit; run again to continue
        └── EngineLost   75   stopped early because the parent of the workers or Ray died

After 75 the same command continues where it ended, with nothing changed in it; a chain of jobs does that. An OSError
that may pass, and remained after the retries, ends with 75 too. docs/running.md has the table for users.

A message says what is wrong, where, and what to do. Any other exception is a bug of ours (exit code 1). Each class
takes its message as the only argument, so that it can travel from a worker to the driver.
"""

from pretok.base.visible import masked


class PretokError(Exception):
    """Base of every error a user can cause or fix; `exit_code` ends the command."""

    exit_code = 2

    def __init__(self, *message: object) -> None:
        super().__init__(*map(masked, message))


class UsageError(PretokError):
    """The command line, the recipe or an input is wrong."""


class MismatchError(PretokError):
    """The files on disk were made from another input, config or tokenizer."""


class IntegrityError(PretokError):
    """A file of ours is damaged, missing or not of the expected format."""


class FolderInUse(PretokError):
    """Another job writes to the output folder."""

    exit_code = 75


class OutputError(PretokError):
    """A file of ours cannot be written."""


class NoSpace(OutputError):
    """The disk or the quota is full."""

    exit_code = 75


class PartitionsFailed(PretokError):
    """The job finished, but the partitions named in the message did not, or it found less than was asked for."""

    exit_code = 3


class DamagedInput(PartitionsFailed):
    """Inputs of a partition could not be read to their end."""


class InternalError(PretokError):
    """A bug of ours in some partitions; the message names the file with the tracebacks."""

    exit_code = 1


class Stopped(PretokError):
    """Stopped early on request; running the same command again continues."""

    exit_code = 75


class EngineLost(Stopped):
    """The parent of the workers, or Ray, died; running the same command again continues."""
