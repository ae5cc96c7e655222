"""What is known of a device, which cores are beside it, and whether it computes what it should before a run."""

from __future__ import annotations

import json
import os
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support import needs

torch = needs("torch")

from torch.nn.attention import SDPBackend

from pretok.base.errors import UsageError
from pretok.base.records import replace
from tests.train_support import filled
from train import preflight
from train.model.sizes import PRESETS
from train.model.transformer import Decoder
from train.parallel import devices, mesh, parallelize
from train.parallel.devices import cores_beside, find_device, gigabytes_of, peak_of
from train.parallel.layout import Layout
from train.parallel.parallelize import float8_products


def test_peaks_are_those_of_the_table() -> None:
    assert peak_of("Some GPU 9000") == (None, "the peak of 'Some GPU 9000' is not known")
    peaks = {"NVIDIA H100 80GB HBM3": 989.5, "NVIDIA H100 PCIe": 756.5, "AMD Instinct MI250X": 191.5}
    peaks |= {"NVIDIA A100-SXM4-40GB": 312, "NVIDIA A100-SXM-64GB": 358.2}
    for name, peak in peaks.items():
        assert peak_of(name)[0] == pytest.approx(peak * 1e12, rel=1e-3)
    assert (gigabytes_of("NVIDIA A100-SXM4-40GB"), gigabytes_of("NVIDIA GH200 480GB")) == (40, 96)


def test_float8_is_refused_where_it_cannot_be(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="needs an H100 or newer, but this is cpu: use bf16"):
        float8_products(Decoder(PRESETS["debug"]), find_device())
    monkeypatch.setattr(devices.Device, "generation", 9)
    monkeypatch.setattr(parallelize, "find_spec", lambda _: None)
    with pytest.raises(UsageError, match="needs the package torchao"):
        float8_products(Decoder(PRESETS["debug"]), find_device())


@pytest.mark.peers
def test_products_in_float8_are_near_those_in_bf16() -> None:
    """Emulated, which is all that a CPU can; parameters keep their names."""
    pytest.importorskip("torchao", reason="float8 needs torchao")
    sizes = replace(PRESETS["debug"], vocab_size=60)
    models = [filled(sizes).bfloat16() for _ in range(2)]
    names = [name for name, _ in models[0].named_parameters()]
    parallelize.convert(models[1], emulate=True)
    assert [name for name, _ in models[1].named_parameters()] == names
    tokens = torch.randint(0, 60, (2, 33), generator=torch.Generator().manual_seed(0))
    gradients = []
    for model in models:
        total, _ = model(tokens[:, :-1], tokens[:, 1:])
        total.backward()
        gradients.append(torch.cat([p.grad.float().flatten() for p in model.parameters()]))
    assert gradients[0].norm() > 0
    assert not torch.equal(*gradients)
    assert torch.nn.functional.cosine_similarity(*gradients, dim=0) > 0.98


@pytest.mark.parametrize(
    ("beside", "allowed", "ranks", "expected"),
    [
        ("0-3,8-11\n", set(range(16)), 4, {0, 1, 2, 3, 8, 9, 10, 11}),
        ("5\n", set(range(4, 8)), 4, {5}),
        ("0-3\n", set(range(2, 16)), 4, set(range(2, 16))),  # two of the three that are a rank's share
        ("0-3\n", {2, 3, 4, 5}, 2, {2, 3}),
        ("0-3\n", {8, 9}, 4, {8, 9}),  # none of them given to this job
        ("\n", {8, 9}, 1, {8, 9}),
        (None, {8, 9}, 1, {8, 9}),
    ],
)
def test_a_rank_runs_beside_its_device_where_it_has_its_share_of_cores(
    tmp_path: Path, beside: str | None, allowed: set[int], ranks: int, expected: set[int]
) -> None:
    (tmp_path / "0000:c1:00.0").mkdir()
    if beside is not None:
        (tmp_path / "0000:c1:00.0" / "local_cpulist").write_text(beside)
    assert cores_beside("0000:c1:00.0", allowed, ranks, tmp_path) == expected


def test_the_address_is_that_of_the_rank_s_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("name", "total_memory", "pci_domain_id", "pci_bus_id", "pci_device_id")
    places = {0: (0, 0x17, 0), 1: (0, 0xC1, 2)}
    bound: list[set[int]] = []
    orders: list[list[int]] = []
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    for name, value in {
        "is_available": lambda: True,
        "device_count": lambda: 2,
        "set_device": lambda index: None,
        "get_device_properties": lambda index: SimpleNamespace(
            major=9, **dict(zip(names, ("NVIDIA H100 80GB HBM3", 80, *places[index]), strict=True))
        ),
    }.items():
        monkeypatch.setattr(torch.cuda, name, value)

    def beside(bus: str, allowed: set[int], ranks: int) -> set[int]:
        assert (bus, allowed, ranks) == ("0000:c1:02.0", os.sched_getaffinity(0), 2)
        return {3}

    monkeypatch.setattr(torch._C, "_set_sdp_priority_order", orders.append)
    monkeypatch.setattr(devices, "cores_beside", beside)
    monkeypatch.setattr(os, "sched_setaffinity", lambda process, cores: bound.append(cores))
    assert find_device().device == torch.device("cuda", 1)
    assert bound == [{3}]
    assert orders[0][0] == SDPBackend.CUDNN_ATTENTION.value  # the fastest on Hopper


def test_threads_are_the_fewest_of_the_fastest(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock on which products take so long with so many threads."""
    now, before = [0.0], torch.get_num_threads()
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(devices, "ROUNDS", 1)

    def chosen(*seconds: float) -> int:
        def clock() -> float:  # asked twice around each product
            now[0] += seconds[min(torch.get_num_threads().bit_length(), len(seconds)) - 1]
            return now[0]

        monkeypatch.setattr(devices.time, "perf_counter", clock)
        return devices.fastest_threads(1 << (len(seconds) - 1))

    try:
        assert chosen(1.0) == 1
        assert chosen(1.0, 3.0) == 1  # beside other load
        assert chosen(4.0, 2.0, 1.0) == 4
        assert chosen(4.0, 2.1, 2.0) == 2
    finally:
        torch.set_num_threads(before)
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert devices.fastest_threads(3) == 3


@pytest.mark.parametrize("ranks", [1, 39, 16_384])
@pytest.mark.parametrize("wrong", [0.0, 1.0])
def test_a_sum_over_any_number_of_ranks_is_exact_and_a_wrong_one_found(
    monkeypatch: pytest.MonkeyPatch, ranks: int, wrong: float
) -> None:
    """As float32 sums it: (39 ranks)^4 is beyond what float32 holds exactly, and a healthy machine was refused."""

    def reduce(tensor: torch.Tensor, group: object) -> None:
        whole = tensor.clone()
        for _ in range(ranks - 1):
            whole += tensor
        whole[5] += wrong
        tensor.copy_(whole)

    monkeypatch.setattr(preflight.dist, "all_reduce", reduce)
    monkeypatch.setattr(preflight.dist, "get_world_size", lambda group=None: ranks)
    monkeypatch.setattr(preflight, "CPU_NUMBERS", 8)
    found = pytest.raises(ArithmeticError, match="sum over all ranks is not") if wrong else nullcontext()
    with found:
        preflight.all_reduce(torch.device("cpu"), None)


def test_the_preflight_sums_in_two_groups(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Some machines hang in the second group, which training has too."""
    used: list[object] = []
    original = preflight.dist.all_reduce

    def reduce(tensor: torch.Tensor, *arguments: object, group: Any = None) -> object:
        used.append(group)
        return original(tensor, *arguments, group=group)

    store = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    values = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port), "RANK": "0", "LOCAL_RANK": "0"}
    for name, value in (values | {"WORLD_SIZE": "1", "TORCHELASTIC_USE_AGENT_STORE": "True"}).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(preflight.dist, "all_reduce", reduce)
    monkeypatch.setattr(preflight, "CPU_NUMBERS", 8)
    assert preflight.main() == 0
    assert len(set(map(id, used))) == 2
    assert None not in used
    checks = json.loads(capsys.readouterr().out)["checks"]
    assert [check["name"] for check in checks] == ["matmul", "all-reduce"]


@pytest.mark.parametrize(("offload", "backend"), [(False, "nccl"), (True, "cpu:gloo,cuda:nccl")])
@pytest.mark.parametrize(
    ("layout", "made"),
    [
        (Layout(2, 2, 1), ["pipeline", "replicate", "shard", "tensor"]),
        (Layout(1, 4, 1), ["pipeline", "replicate", "tensor"]),
        (Layout(1, 1, 1, pipeline=4), ["pipeline", "replicate", "shard", "tensor"]),
    ],
)
def test_groups_of_a_mesh_connect_no_hosts(
    monkeypatch: pytest.MonkeyPatch, layout: Layout, made: list[str], offload: bool, backend: str
) -> None:
    """Hosts talk in the group of all ranks, which also serves as a dimension of all ranks: torch takes it for one about
    which nothing is said; but not as a pipeline. With --offload gradients are on the host."""
    given: dict[str, Any] = {}
    monkeypatch.setattr(mesh, "init_device_mesh", lambda *_, **named: given.update(named))
    monkeypatch.setattr(mesh.dist, "get_world_size", lambda: 4)
    device = devices.Device(torch.device("cuda"), "", "cpu:gloo,cuda:nccl", None, "")
    mesh.build_mesh(device, layout, offload=offload)
    assert given["backend_override"] == dict.fromkeys(made, backend)
