"""Records that another node wrote and this one does not see at once, as on a network file system."""

from __future__ import annotations

from pathlib import Path

import pytest
from tokenizing import recipe, run

from pretok.base.errors import IntegrityError
from pretok.base.execute import Engine
from pretok.shards import partition_record as record
from pretok.shards.manifest import load_manifest


@pytest.mark.parametrize("appears", [True, False])
def test_a_late_record_is_waited_for_and_its_source_is_not_left_out(
    tmp_path: Path, vocab_dir: Path, here: Engine, monkeypatch: pytest.MonkeyPatch, appears: bool
) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "uno"}\n')
    waited: list[float] = []
    seen, real = ("it-00000.json",) if not appears else (), record.load_record

    def late(path: Path) -> record.PartitionRecord | None:
        return None if path.name in seen or sum(waited) < 2 else real(path)

    monkeypatch.setattr(record, "load_record", late)
    monkeypatch.setattr(record, "sleep", waited.append, raising=False)
    made = recipe(tmp_path / "work", vocab_dir, {"it": [tmp_path / "a.jsonl"]})
    if appears:
        run(made, here)
        assert load_manifest(made.shards_dir).sources["it"].documents == 1
    else:
        with pytest.raises(
            IntegrityError, match="partition it-00000 is done, but this node does not see its record"
        ):
            run(made, here)
    assert waited == [0, 0.2, 2.0, *([] if appears else [20.0])]
