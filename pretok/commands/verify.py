"""`pretok verify`."""

from __future__ import annotations

from typing import Annotated

import typer

from pretok.commands.options import Address, Json, Shards, Workers, start_engine
from pretok.jobs import VERIFY_DOCUMENTS


def verify(
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
    from pretok.console import Meter, notice, print_json
    from pretok.errors import IntegrityError, PartitionsFailed
    from pretok.jobs.verify import report_json, run_verify

    with start_engine(workers, address) as engine, Meter("verify") as meter:
        manifest, problems = run_verify(shards, None if full else sample, engine, meter)
    if json:
        print_json(report_json(manifest, problems))
    if problems:
        raise IntegrityError(
            "\n".join([f"{len(problems)} problems in {shards}:", *(f"  {p}" for p in problems)])
        )
    notice(f"{shards}: {len(manifest.shards)} shards are as sealed (manifest {manifest.fingerprint})")
    if failed := manifest.data["failed"]:
        raise PartitionsFailed(
            f"but {len(failed)} inputs were not read to their end; run pretok tokenize again"
        )
