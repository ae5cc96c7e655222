"""The pre-flight finds a wrong sum, and none where there is none, whatever the number of ranks."""

from __future__ import annotations

import pytest
from support import needs

torch = needs("torch")
from train import preflight


@pytest.mark.parametrize("ranks", [1, 38, 39, 41, 1023, 16_384])
def test_a_sum_over_any_number_of_ranks_is_exact(monkeypatch: pytest.MonkeyPatch, ranks: int) -> None:
    """As float32 sums it: (39 ranks)^4 is beyond what float32 holds exactly, and a healthy machine was refused."""

    def reduce(tensor: torch.Tensor, group: object) -> None:
        whole = tensor.clone()
        for _ in range(ranks - 1):
            whole += tensor
        tensor.copy_(whole)

    monkeypatch.setattr(preflight.dist, "all_reduce", reduce)
    monkeypatch.setattr(preflight.dist, "get_world_size", lambda group=None: ranks)
    monkeypatch.setattr(preflight, "CPU_NUMBERS", 8)
    assert preflight.all_reduce(torch.device("cpu"), None) > 0


def test_a_wrong_sum_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight.dist, "all_reduce", lambda tensor, group: tensor.mul_(3.0)[5].add_(1.0))
    monkeypatch.setattr(preflight.dist, "get_world_size", lambda group=None: 3)
    with pytest.raises(ArithmeticError, match=r"sum over all ranks is not 3\.0 everywhere"):
        preflight.all_reduce(torch.device("cpu"), None)
