"""Plays rounds and draws a figure when it is imported: processes forked later have all code in memory."""

import io

import torch
from matplotlib.figure import Figure

from fedcom.config import Config, read
from fedcom.runs.prepare import prepare

torch.set_num_threads(1)  # threads do not survive a fork
for codec in ("int", "rotated"):
    config = Config.of(read(None, ["model.hidden=8", "run.rounds=1", f"uplink.name={codec}"]))
    prepare(config, "cpu")[0].run()
figure = Figure()
figure.subplots().plot([1, 2], label="x")
figure.savefig(io.BytesIO(), format="png")
