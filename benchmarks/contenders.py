"""The same job done by each contender; they share only the job and the clock.

Every contender is a function that runs `total` rounds of a job on a device and calls `tick` after each.
"""

import copy
import logging
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from functools import lru_cache
from itertools import islice
from types import ModuleType
from typing import Any

import torch
from benchmarks.jobs import ETA, Job
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

Tick = Callable[[], None]


def fedcom_fedavg(job: Job, device: str, total: int, tick: Tick, **options: Any) -> None:
    """fedcom's FedAvg: whole vectors up, no client state."""
    import fedcom

    _fedcom(fedcom.FedAvg, None, job, device, total, tick, **options)


def fedcom_fedcomgate(job: Job, device: str, total: int, tick: Tick, **options: Any) -> None:
    """fedcom's FedCOMGATE: int 8 with stochastic rounding, gradient tracking, every byte counted."""
    import fedcom

    _fedcom(fedcom.FedCOMGATE, fedcom.Links(fedcom.Int(8)), job, device, total, tick, **options)


def fedcom_rotated(job: Job, device: str, total: int, tick: Tick, **options: Any) -> None:
    """FedCOMGATE with 1/4 bit per coordinate: rotated, quantised, the entropy coder's bytes counted."""
    import fedcom

    _fedcom(fedcom.FedCOMGATE, fedcom.Links(fedcom.Rotated(0.25)), job, device, total, tick, **options)


def fedcom_compiled(job: Job, device: str, total: int, tick: Tick, **options: Any) -> None:
    """The same with kernels fused by torch.compile."""
    fedcom_fedcomgate(job, device, total, tick, engine="compiled", **options)


def fedcom_fedavg_compiled(job: Job, device: str, total: int, tick: Tick, **options: Any) -> None:
    """fedcom's FedAvg with kernels fused by torch.compile."""
    fedcom_fedavg(job, device, total, tick, engine="compiled", **options)


def _fedcom(
    method: Any, links: Any, job: Job, device: str, total: int, tick: Tick, tf32: bool, engine: str = "auto"
) -> None:
    import fedcom
    from fedcom.engines.ranks.ranks import join, leave

    ranks = join()  # alone, unless the contender's name ends with -ranks
    steps = {"epochs": 1} if job.epoch else {"tau": job.steps}
    simulation = fedcom.Simulation(
        fedcom_task(job),
        method(eta=ETA, decay=1.0, batch=job.batch, **steps),
        links,
        device=device,
        participation=job.sampled / job.clients,
        engine=engine,
        tf32=tf32,
        ranks=ranks,
    )
    if ranks.rank:
        simulation.follow()
        return
    for _ in range(total):
        simulation.step()
        tick()
    leave()


def fedcom_task(job: Job) -> Any:
    """The job's data and module as fedcom takes them."""
    import fedcom

    (x, y), owner = job.data(), torch.arange(job.clients).repeat_interleave(job.samples)
    return fedcom.Task.from_arrays(
        job.module(), x.flatten(0, 1), y.flatten(), groups=owner, partition="natural"
    )


def loop(job: Job, device: str, total: int, tick: Tick, **options: Any) -> None:
    """A plain PyTorch loop: one client after the other, autograd and torch.optim."""
    x, y = job.data(device)
    server = job.module().to(device)
    module = copy.deepcopy(server)
    for _ in range(total):
        mean = [torch.zeros_like(p) for p in server.parameters()]
        for client in torch.randperm(job.clients)[: job.sampled].tolist():
            module.load_state_dict(server.state_dict())
            train(module, x[client], y[client], job)
            with torch.no_grad():
                for total_p, p in zip(mean, module.parameters(), strict=True):
                    total_p.add_(p, alpha=1 / job.sampled)
        with torch.no_grad():
            for p, new in zip(server.parameters(), mean, strict=True):
                p.copy_(new)
        tick()


def train(module: nn.Module, x: Tensor, y: Tensor, job: Job) -> None:
    """One client's local steps."""
    optimizer = torch.optim.SGD(module.parameters(), lr=ETA)
    for rows in _batches(job, x.device):
        optimizer.zero_grad()
        cross_entropy(module(x[rows]), y[rows]).backward()
        optimizer.step()


def _batches(job: Job, device: torch.device) -> Iterator[Tensor]:
    """The rows of each minibatch: one pass over the data in random order, or random draws."""
    if job.epoch:
        yield from torch.randperm(job.samples, device=device).split(job.batch)
    else:
        for _ in range(job.steps):
            yield torch.randint(job.samples, (job.batch,), device=device)


def pfl(job: Job, device: str, total: int, tick: Tick, **options: Any) -> None:
    """pfl-research: its federated averaging on a simulated backend; data on the device from the start."""
    os.environ["PFL_PYTORCH_DEVICE"] = device
    _without_privacy()
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.aggregate.weighting import WeightByUser
    from pfl.algorithm import FederatedAveraging, NNAlgorithmParams
    from pfl.data import FederatedDataset, get_user_sampler
    from pfl.hyperparam import NNTrainHyperParams
    from pfl.model.pytorch import PyTorchModel

    x, y = job.data(device)
    users = {client: [x[client], y[client]] for client in range(job.clients)}
    kind = "minimize_reuse" if job.sampled == job.clients else "random"
    data = FederatedDataset.from_slices(users, get_user_sampler(kind, list(users)))
    module = with_loss(job.module())
    model = PyTorchModel(
        model=module,
        local_optimizer_create=torch.optim.SGD,
        central_optimizer=torch.optim.SGD(module.parameters(), lr=1.0),
    )
    steps = {
        "local_num_epochs": 1 if job.epoch else None,
        "local_num_steps": None if job.epoch else job.steps,
    }
    FederatedAveraging().run(
        # Only the first round, which is not timed, evaluates.
        NNAlgorithmParams(
            central_num_iterations=total,
            evaluation_frequency=total + 1,
            train_cohort_size=job.sampled,
            val_cohort_size=0,
        ),
        SimulatedBackend(training_data=data, val_data=data, postprocessors=[WeightByUser()]),
        model,
        NNTrainHyperParams(local_learning_rate=ETA, local_batch_size=job.batch, **steps),
        callbacks=[_every_round(tick)],
        send_metrics_to_platform=False,
    )


def _without_privacy() -> None:
    """If the libraries of pfl's privacy accounting are missing, do without: no contender uses them."""
    try:
        import dp_accounting  # noqa: F401
        import prv_accountant  # noqa: F401
    except ImportError:
        sys.modules.setdefault("pfl.privacy", ModuleType("pfl.privacy"))


def with_loss(module: nn.Module) -> nn.Module:
    """The module with the two methods that pfl needs."""

    class WithLoss(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = module

        def loss(self, x: Tensor, y: Tensor) -> Tensor:
            return cross_entropy(self.inner(x), y)

        def metrics(self, x: Tensor, y: Tensor) -> dict[str, Any]:
            from pfl.metrics import Weighted

            with torch.no_grad():
                return {"loss": Weighted(float(self.loss(x, y)) * len(y), len(y))}

    return WithLoss()


def _every_round(tick: Tick) -> Any:
    """A pfl callback that calls `tick` after every round."""
    from pfl.callback.base import TrainingProcessCallback
    from pfl.metrics import Metrics

    class Ticks(TrainingProcessCallback):
        def after_central_iteration(self, *args: Any, **kwargs: Any) -> tuple[bool, Any]:
            tick()
            return False, Metrics()

    return Ticks()


def flower(job: Job, device: str, total: int, tick: Tick, **options: Any) -> None:
    """Flower's simulation at its best: FedAvg over Ray, one worker per core, each with one thread."""
    _flower(job, total, tick, flower_client(job), {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}})


def flower_plain(job: Job, device: str, total: int, tick: Tick, **options: Any) -> None:
    """Flower's simulation as in its tutorials: default resources, a new module and loader per message."""
    _flower(job, total, tick, flower_plain_client(job), {})


def _flower(job: Job, total: int, tick: Tick, client: Any, resources: dict[str, Any]) -> None:
    warnings.simplefilter("ignore")
    logging.getLogger("flwr").setLevel(logging.ERROR)
    from flwr.app import ArrayRecord
    from flwr.serverapp import ServerApp
    from flwr.serverapp.strategy import FedAvg
    from flwr.simulation import run_simulation

    server, share = ServerApp(), job.sampled / job.clients

    @server.main()
    def main(grid: Any, context: Any) -> None:
        FedAvg(fraction_train=share, fraction_evaluate=0.0, min_available_nodes=job.clients).start(
            grid=grid,
            initial_arrays=ArrayRecord(job.module().state_dict()),
            num_rounds=total,
            evaluate_fn=lambda index, arrays: tick() if index else None,  # called before round 1 too
        )

    cores = len(os.sched_getaffinity(0))
    init = {"num_cpus": cores, "include_dashboard": False, "log_to_driver": False}
    run_simulation(server, client, job.clients, backend_config={**resources, "init_args": init})


def flower_client(job: Job) -> Any:
    """The app of one client; a worker makes data and module once and keeps them."""

    def fit(client: int, arrays: dict[str, Tensor]) -> nn.Module:
        torch.set_num_threads(1)
        x, y, module = _kept(job)
        module.load_state_dict(arrays)
        train(module, x[client], y[client], job)
        return module

    return _flower_app(job, fit)


def flower_plain_client(job: Job) -> Any:
    """The app of one client as in tutorials; only the data is kept between messages."""

    def fit(client: int, arrays: dict[str, Tensor]) -> nn.Module:
        from torch.utils.data import DataLoader, TensorDataset

        x, y, _ = _kept(job)
        module = job.module()
        module.load_state_dict(arrays)
        optimizer = torch.optim.SGD(module.parameters(), lr=ETA)
        loader = DataLoader(TensorDataset(x[client], y[client]), batch_size=job.batch, shuffle=True)
        for inputs, labels in islice(loader, job.steps):
            optimizer.zero_grad()
            cross_entropy(module(inputs), labels).backward()
            optimizer.step()
        return module

    return _flower_app(job, fit)


def _flower_app(job: Job, fit: Callable[[int, dict[str, Tensor]], nn.Module]) -> Any:
    from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp

    app = ClientApp()

    @app.train()
    def answer(message: Any, context: Any) -> Any:
        arrays = message.content["arrays"].to_torch_state_dict()
        module = fit(int(context.node_config["partition-id"]), arrays)
        records = {
            "arrays": ArrayRecord(module.state_dict()),
            "metrics": MetricRecord({"num-examples": job.samples}),
        }
        return Message(content=RecordDict(records), reply_to=message)

    return app


@lru_cache(maxsize=1)
def _kept(job: Job) -> tuple[Tensor, Tensor, nn.Module]:
    return *job.data(), job.module()


CONTENDERS: dict[str, Callable[..., None]] = {
    "fedcom-fedavg": fedcom_fedavg,
    "fedcom-fedcomgate": fedcom_fedcomgate,
    "fedcom-rotated": fedcom_rotated,
    "fedcom-fedavg-ranks": fedcom_fedavg,
    "fedcom-fedcomgate-ranks": fedcom_fedcomgate,
    "fedcom-compiled": fedcom_compiled,
    "fedcom-fedavg-compiled": fedcom_fedavg_compiled,
    "loop": loop,
    "loop-single": loop,
    "pfl": pfl,
    "pfl-single": pfl,
    "pfl-ranks": pfl,
    "flower": flower,
    "flower-plain": flower_plain,
}
