"""A new Flower app in a folder: four files, of which one is for the user's model and data."""

import re
from pathlib import Path

from fedcom.errors import ConfigError
from fedcom.version import VERSION

FLWR = "1.41.0"  # the version of Flower that the app is written for

_PYPROJECT = """\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "{name}"
version = "0.1.0"
description = "Federated learning with fedcom over Flower"
license = {{ file = "LICENSE" }}
requires-python = ">=3.11"
dependencies = ["flwr>={flwr}", "fedcom[flower]>={version}"]

[tool.hatch.build.targets.wheel]
packages = ["{package}"]

[tool.flwr.app]
publisher = "me"
fab-format-version = 1
flwr-version-target = "{flwr}"

[tool.flwr.app.components]
serverapp = "{package}.app:server_app"
clientapp = "{package}.app:client_app"

[tool.flwr.app.config]
out = "~/fedcom-runs/{name}"  # a folder on the server; a run that is in it already goes on
settings = ""                 # laid over {package}/fedcom.toml, such as "run.rounds=50 uplink.bits=4"
wait = 60                     # seconds to wait for all nodes before the first round
"""

_CONFIG = """\
# Method, codecs and rounds, as for `fedcom run`; the data and the model are in task.py.
[data]
clients = {clients}

[algorithm]
name = "fedcomgate"
eta = 0.05
gamma = 1.0
tau = 10
batch = 32

[uplink]
name = "int"
bits = 8

[run]
rounds = 5
participation = 1.0
seed = 0

[round]
deadline = 300.0  # seconds after which a round goes on without the clients that have not replied
least = 0.5       # the share of clients that must have replied by then
clip_times = 10.0 # no client counts for more than a vector of so many times the median length
"""

_APP = '''\
"""The apps that Flower starts; nothing here needs to be changed."""

from fedcom.deployment.flower.apps import apps

from {package} import task

both = apps(__file__, task)
server_app = both.server
client_app = both.client
'''

_TASK = '''\
"""The model and the data: change this file."""

from sklearn.datasets import load_digits
from torch import nn


def model():
    """The model; its parameters are drawn from run.seed, the same on every machine."""
    return nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))


def client_data(client, clients):
    """The samples of one client, x and y: on its own machine, read them from its own disk."""
    x, y = _digits()
    x, y = x[:1500], y[:1500]
    order = y.argsort(kind="stable")  # every client has few classes
    mine = order[client * len(y) // clients : (client + 1) * len(y) // clients]
    return x[mine], y[mine]


def test_data():
    """What the server evaluates the model on; leave it out if there is nothing."""
    x, y = _digits()
    return x[1500:], y[1500:]


def _digits():
    x, y = load_digits(return_X_y=True)
    return (x - 8.0) / 6.0, y
'''

_README = """\
# {name}

Federated learning with fedcom, carried by Flower. The model and the data are in `{package}/task.py`, the
method and its codecs in `{package}/fedcom.toml`.

    pip install -e .
    pip install 'flwr[simulation]' && flwr run . --federation-config 'num-supernodes={clients}'   # simulation
    flwr run . my-superlink --run-config 'settings="run.rounds=50"'   # real machines

Each SuperNode says which client it is: `flower-supernode --node-config 'client=0' ...`. Results are in the
folder `out` of `pyproject.toml`, on the server; `fedcom report` and `fedcom status` read it. If the server is
stopped, the same `flwr run` goes on where it stopped.
"""


def new(folder: Path, clients: int = 4) -> list[Path]:
    """Write a new app into a folder that is empty or does not exist; returns the files.

    Args:
        clients: how many there will be.
    """
    name = re.sub(r"[^a-z0-9]+", "-", folder.resolve().name.lower()).strip("-")
    if not re.match(r"[a-z]", name):
        raise ConfigError(f"the app is named after its folder: begin it with a letter; got {folder.name!r}")
    if clients < 1:
        raise ConfigError(f"clients must be 1 or more; got {clients}")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"{folder} is not an empty folder; choose another")
    package = name.replace("-", "_")
    words = {"name": name, "package": package, "version": VERSION, "flwr": FLWR, "clients": clients}
    files = {
        "pyproject.toml": _PYPROJECT.format(**words),
        "README.md": _README.format(**words),
        "LICENSE": "All rights reserved.\n",
        f"{package}/__init__.py": "",
        f"{package}/app.py": _APP.format(**words),
        f"{package}/fedcom.toml": _CONFIG.format(**words),
        f"{package}/task.py": _TASK,
    }
    try:
        (folder / package).mkdir(parents=True)
        for path, text in files.items():
            (folder / path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot write to {folder}: {error.strerror}; choose another folder") from None
    return [folder / path for path in files]
