"""The workers of test_torchrun.py, which torchrun starts."""

import json
import os
import signal
import sys
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from fedcom.errors import ConfigError, RankLost, WireError
from fedcom.outer import Gradients, Outer, hook, links, restore, save, start

torch.set_num_threads(1)


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3)).double()


def samples(rank: int) -> tuple[Tensor, Tensor]:
    """A worker's data: one sample, so that every minibatch is the same."""
    draw = torch.Generator().manual_seed(rank)
    return torch.randn(1, 6, generator=draw, dtype=torch.float64), torch.tensor([rank % 3])


def train(
    net: nn.Module, outer: Outer, steps: int, folder: Path | None = None, victim: int = -1
) -> list[Tensor]:
    """Take steps on this worker's data; the model after each outer step.

    Args:
        folder: of checkpoints, from which it goes on.
        victim: the worker that is killed halfway, once.
    """
    optimizer, found = torch.optim.AdamW(net.parameters(), lr=1e-2), list[Tensor]()
    rank = dist.get_rank()
    x, y = samples(rank)
    if folder is not None:
        restore(folder, outer, net=net, optimizer=optimizer)
    while outer.steps < steps:
        nn.functional.cross_entropy(net(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
        if outer.step():
            found.append(flat(net))
            if folder is not None:
                save(folder, outer, net=net, optimizer=optimizer)
        if (
            victim == rank
            and outer.steps == steps // 2 + 2
            and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
        ):
            os.kill(os.getpid(), signal.SIGKILL)
    outer.finish()
    return [*found, flat(net)]


def flat(net: nn.Module) -> Tensor:
    return torch.cat([p.detach().flatten() for p in net.parameters()])


def all_same(x: Tensor) -> bool:
    """Whether all workers have the same bits."""
    others = [torch.empty_like(x) for _ in range(dist.get_world_size())]
    dist.all_gather(others, x)
    return all(torch.equal(x, other) for other in others)


def counted() -> list[int]:
    """A list that grows by the bytes of every message that is received from now on."""
    heard, irecv = list[int](), dist.irecv

    def spy(tensor: Tensor, *more: Any) -> Any:
        heard.append(tensor.nbytes)
        return irecv(tensor, *more)

    dist.irecv = spy
    return heard


def outcomes(rank: int) -> dict[str, Any]:
    """What the test asserts, by name."""
    found, heard = dict[str, Any](), counted()
    net = model()
    outer = Outer(net, "rotated", 0.25, every=5)
    found["path"] = torch.stack(train(net, outer, 100)[:-1])
    found["same"] = all_same(flat(net))
    found["bytes"] = (outer.received, sum(heard))
    net = model()
    train(net, Outer(net, "rotated", 0.25, every=5, delay=1, fragments=2), 23)
    found["same"] &= all_same(flat(net))

    for down in ("identity", None):
        net, heard[:] = model(), []
        outer = Outer(net, "rotated", 0.25, every=5, leader=True, down=down)
        found[f"led {down}"] = torch.stack(train(net, outer, 20)[:-1])
        found[f"sent {down}"] = (outer.sent, outer.received, sum(heard))
        found["same"] &= all_same(flat(net))

    net = model()
    outer = Outer(net, "int", 8, every=1, weight=1.0 + rank)
    before = flat(net)
    with torch.no_grad():
        next(net.parameters()).add_(torch.inf if rank == 2 else 1.0 + rank)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        outer.step()
    found["not finite"] = [str(warning.message) for warning in said]
    found["without it"] = (flat(net) - before)[0]  # 1.33 times the weighted mean of what came: 1, 2 and 4
    found["same"] &= all_same(flat(net))

    net = model()
    outer = Outer(net, "int", 8, every=1, optimiser="sgd", rate=1.0)
    exchange, kept = outer._links.exchange, list[bytes]()

    def badly(message: bytes) -> list[memoryview]:
        """Worker 3 sends its first message again, and that of worker 2 is damaged on its way to worker 1."""
        kept.append(message)
        mail = exchange(kept[0] if rank == 3 else message)
        if rank == 1 and len(kept) == 2:
            mail[2] = memoryview(bytes(mail[2][:-1]) + b"?")
        return mail

    outer._links.exchange = badly
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for _ in range(2):
            before = flat(net)
            with torch.no_grad():
                next(net.parameters()).add_(1.0 + rank)
            outer.step()
    found["refused"] = [str(warning.message) for warning in said]
    found["of two"] = (flat(net) - before)[0]
    found["same"] &= all_same(flat(net))

    ddp, heard[:] = nn.parallel.DistributedDataParallel(model()), []
    state = Gradients("int", 16)
    ddp.register_comm_hook(state, hook)
    x, y = samples(rank)
    for scale in (1.0, torch.nan):
        ddp.zero_grad()
        (scale * nn.functional.cross_entropy(ddp(x), y)).backward()
        found[f"gradient {scale}"] = torch.cat(
            [p.grad.flatten() for p in ddp.parameters() if p.grad is not None]
        )
    found["same"] &= all_same(found["gradient 1.0"])
    found["hook"] = (state.steps, state.received, sum(heard))
    found |= grouped(rank)

    found["differ"] = [
        raised(ConfigError, lambda given=given: Outer(model(), **given))
        for given in ({"seed": int(rank == 3)}, {"rate": 0.7 if rank else 0.6})
    ]
    shards = links.Links(2, True, 60)
    found["least of shards"] = shards.gather(shards.least(10 - 5 * (rank == 3)))
    found["ended"], found["together"] = endings(rank)
    net = model()
    outer = Outer(net, every=1)
    outer._fragments[0].w[0].add_(float(rank == 1))  # as if a worker computed something else
    found["drifted"] = raised(RankLost, outer.step)
    return found


def grouped(rank: int) -> dict[str, Any]:
    """The hook where DDP is over processes 0 and 2, or 1 and 3, and some processes have groups besides."""
    dist.new_group([0, 3])
    groups = [dist.new_group([i, i + 2]) for i in range(2)]
    net = nn.parallel.DistributedDataParallel(nn.Linear(600, 20), process_group=groups[rank % 2])
    state = Gradients("int", 16, group=net.process_group)
    net.register_comm_hook(state, hook)
    net(torch.full((1, 600), 1.0 + rank)).sum().backward()
    (weight, _), found = net.parameters(), dict[str, Any]()
    assert weight.grad is not None
    found["gradient of two"], found["bytes of two"] = weight.grad.clone(), (state.sent, state.received)
    state._links.exchange = lambda message: [memoryview(message)[: 9 * i] for i in (1, 2)]
    found["hook's damage"] = raised(WireError, lambda: state.mean(torch.ones(9), 0))
    given = groups[rank % 2] if rank else None
    found["hook's groups"] = raised(ConfigError, lambda: Gradients(group=given))
    return found


def raised(kind: type[Exception], do: Callable[[], object]) -> str:
    """What the error says that this raises."""
    try:
        do()
    except kind as error:
        return str(error)
    return "nothing"


def endings(rank: int) -> tuple[list[str], list[bool]]:
    """Workers that end at other steps: what they are told, and whether those that may are the same."""
    told, together = list[str](), list[bool]()
    for leader in (False, True):
        for fragments, steps in ((1, [3, 5, 5, 5]), (2, [6, 9, 9, 9]), (1, [5, 4, 4, 4]), (1, [5, 5, 5, 5])):
            net = model()
            outer = Outer(net, every=5, fragments=fragments, leader=leader)
            told.append(raised(RankLost, partial(train, net, outer, steps[rank])))
        for steps in ([12, 14, 10, 11], [10, 10, 10, 13]):
            net = model()
            outer = Outer(net, every=5, leader=leader)
            end = train(net, outer, steps[rank])[-1]
            outer.finish()
            together.append(all_same(end) and torch.equal(flat(net), end) and outer.turns == [3])
    net, before, links.QUIET = model(), links.QUIET, 0.05
    outer = Outer(net, every=1)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        time.sleep(0.3 * (rank == 3))
        outer.step()
    links.QUIET = before
    together.append(
        [str(w.message)[:39] for w in said] == ["worker 3 has not answered for 0.05 seco"] * (rank < 3)
    )
    return told, together


def sites(kind: str) -> dict[str, Any]:
    """Two sites of two processes each, which share their gradients, or the parameters too."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 4))
    if kind == "ddp":
        groups = [dist.new_group([0, 1]), dist.new_group([2, 3])]
        net = nn.parallel.DistributedDataParallel(net, process_group=groups[dist.get_rank() // 2])
    else:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        fully_shard(net, mesh=init_device_mesh("cpu", (2, 2), mesh_dim_names=("site", "inside"))["inside"])
    draw = torch.Generator().manual_seed(dist.get_rank())
    x, losses, seen = torch.randn(20, 6, generator=draw), list[float](), True
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    with torch.no_grad():
        net(x)  # FSDP gathers parameters, and keeps them until a backward pass
    outer = Outer(net, every=5, per_site=2)
    for step in range(40):
        loss = nn.functional.cross_entropy(net(x), x[:, :4].argmax(1))
        losses.append(loss.item())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            before = net(x)
            if step % 5 < 4:
                with outer.averaged():
                    seen &= step < 5 or not torch.equal(net(x), before)
                seen &= torch.equal(net(x), before)
            if outer.step():
                seen &= not torch.equal(net(x), before)
    whole = [p.full_tensor() if hasattr(p, "full_tensor") else p.detach() for p in net.parameters()]
    same = all_same(torch.cat([p.flatten() for p in whole]))
    return {"same": same and seen, "size": outer.size, "sent": outer.sent, "losses": losses}


def work(given: dict[str, Any]) -> None:
    """What one worker does; what it finds goes to a file."""
    start(timeout=60)
    rank = dist.get_rank()
    if "folder" in given:
        net, folder = model(), Path(given["folder"])
        outer = Outer(net, every=5, **{"codec": "rotated", **given["more"]})
        if (
            given.get("forgets")
            and rank == given["victim"]
            and os.environ["TORCHELASTIC_RESTART_COUNT"] == "1"
        ):
            for path in folder.glob(f"worker-{rank}-*"):  # as a new machine in the place of a lost one
                path.unlink()
        done = train(net, outer, 40, folder, given["victim"])
        own = outer.state_dict()["fragments"]
        moments = [x for part in own for some in part["moments"] for x in some.values()]
        result: Any = {
            "end": done[-1],
            "same": all_same(done[-1]) and all_same(torch.cat(moments)),
            "turns": outer.turns,
            "outer steps": len(done) - 1,
        }
    else:
        result = sites(given["sites"]) if "sites" in given else outcomes(rank)
    torch.save(result, f"{given['out']}-{rank}.pt")
    dist.destroy_process_group()


def launch(workers: int, restarts: int, given: dict[str, Any]) -> None:
    """What torchrun does, but workers are forked from this process and need not import torch again."""
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    torch.optim.AdamW([nn.Parameter(torch.zeros(1))])  # imports what optimisers need, once for all workers
    config = LaunchConfig(
        *(1, 1, workers),
        run_id="outer",
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        max_restarts=restarts,
        monitor_interval=0.05,
        start_method="fork",
    )
    elastic_launch(config, work)(given)


if __name__ == "__main__":
    work(json.loads(sys.argv[1]))
