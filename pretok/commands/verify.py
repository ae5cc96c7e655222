"""`pretok verify`."""

from __future__ import annotations

from typing import Annotated

import typer

from pretok.audit import VERIFY_DOCUMENTS
from pretok.commands.options import Address, Json, Shards, Workers, start_engine, terminal, work_of


def verify(
    context: typer.Context,
    shards: Shards,
    sample: Annotated[
        int, typer.Option(min=0, help="Documents to decode and encode again.")
    ] = VERIFY_DOCUMENTS,
    full: Annotated[bool, typer.Option("--full", help="Decode and encode every document again.")] = False,
    workers: Workers = None,
    address: Address = None,
    json: Json = False,
) -> None:
    """Check shards against their manifest: sizes, checksums, ids, totals, and documents encoded again.

    pretok verify work/shards --full
    """
    from pretok.audit.verify_job import notes, run_verify, verify_report
    from pretok.base.console import print_json
    from pretok.base.errors import IntegrityError, PartitionsFailed
    from pretok.base.units import counted
    from pretok.shards.manifest import FILE_NAME

    tell = terminal(context, work_of(shards))
    with start_engine(workers, address) as engine:
        manifest, problems = run_verify(shards, None if full else sample, engine, tell)
    for sentence in notes(manifest):
        tell.notice(sentence)
    if json:
        print_json(verify_report(manifest, problems))
    if problems:
        raise IntegrityError(
            "\n".join([f"{counted(len(problems), 'problem')} in {shards}:", *(f"  {p}" for p in problems)])
        )
    totals, sound = manifest.contents.totals, "is" if len(manifest.shards) == 1 else "are"
    again = totals.documents if full else min(sample, totals.documents)
    if manifest.contents.materialized is not None:
        again = 0  # they are sequences of a mix
    tell.notice(
        f"{shards}: {counted(len(manifest.shards), 'shard')} of {counted(totals.documents, 'document')} and "
        f"{counted(totals.tokens, 'token')} {sound} as sealed: sizes, checksums, ids and totals of all, "
        f"{counted(again, 'document')} encoded again (manifest {manifest.fingerprint})"
    )
    if failed := manifest.contents.failed:
        unread = "was" if len(failed) == 1 else "were"
        raise PartitionsFailed(
            f"but {counted(len(failed), 'input')} {unread} not read to the end; mend what `failed` in "
            f"{shards / FILE_NAME} names and run the same pretok tokenize again"
        )
