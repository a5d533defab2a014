"""Real Flower: a SuperLink and SuperNodes on loopback give the model of the same clients in one process."""

import hashlib
import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from fedcom.deployment.flower.new import new
from fedcom.reports import page
from tests.conftest import CHAOS
from tests.deployment.federation import BIN, MISSING, ROOT, federation
from tests.deployment.invariants import audit, check, missing_in

pytestmark = pytest.mark.skipif(MISSING is not None, reason=str(MISSING))
LONG = bool(os.environ.get("FEDCOM_DEPLOY"))
CLIENTS = 4 if LONG or CHAOS else 2


def test_a_job_goes_on_while_a_node_is_stopped_and_one_is_killed(tmp_path: Path) -> None:
    """It has the model of the same clients in one process, and the sums on the clients' disks are zero.

    Outside `make chaos` and `make deploy-test` there are two nodes, and none is killed.
    """
    app, out = tmp_path / "digits", tmp_path / "out"
    settings = "round.deadline=12 round.least=0.3 round.void=100 round.pause=0"
    new(app, CLIENTS)
    with federation(tmp_path / "fed", CLIENTS) as fed:
        for client in range(CLIENTS):
            fed.node(client)
        started = fed.run(app, out, f"{settings} run.rounds=1000")
        assert started.returncode == 0, started.stdout + started.stderr
        fed.wait_for(out / "metrics.jsonl", '"round": 2')
        if CLIENTS > 2:
            fed.kill("node-2")
        fed.processes["node-1"].send_signal(signal.SIGSTOP)
        fed.wait_for(out / "faults.jsonl", "1, 2]" if CLIENTS > 2 else "1]")
        fed.processes["node-1"].send_signal(signal.SIGCONT)
        alone = len(audit(out))
        fed.wait_until(lambda: any("1" in line["counted"] for line in audit(out)[alone:]))
    rounds = check(app, out, tmp_path / "fed" / "state", settings, tmp_path / "here")
    assert rounds >= 3
    page.write([out, tmp_path / "here" / "run"], tmp_path / "report.html")
    assert "fedcomgate" in (tmp_path / "report.html").read_text()


@pytest.mark.skipif(not LONG, reason="takes minutes: make deploy-test")
def test_killed_nodes_and_a_killed_server_lose_nothing(tmp_path: Path) -> None:
    """20 rounds; a SuperNode is killed and started again, and so is the ServerApp."""
    app, out = tmp_path / "digits", tmp_path / "out"
    settings = "run.rounds=20 round.deadline=20 round.least=0.25 uplink.bits=4"
    settings += " round.rebind=true"  # a SuperNode that is given no key has a new one when it starts again
    new(app, CLIENTS)
    with federation(tmp_path / "fed", CLIENTS) as fed:
        for client in range(CLIENTS):
            fed.node(client)
        assert fed.run(app, out, settings).returncode == 0
        fed.wait_for(out / "metrics.jsonl", '"round": 4')
        fed.kill("node-2")
        fed.wait_for(out / "metrics.jsonl", '"round": 6')
        fed.node(2)
        fed.wait_for(out / "metrics.jsonl", '"round": 9')
        (server,) = fed.apps("flwr-serverapp")
        os.kill(server, signal.SIGKILL)
        while fed.apps("flwr-serverapp"):
            time.sleep(0.05)
        assert fed.run(app, out, settings).returncode == 0
        fed.wait_for(out / "summary.json", '"status": "done"', 900)
    assert missing_in(out), "nobody was missing: the node was not killed in time"
    resumed = json.loads((out / "environment.json").read_text())["resumed"]
    assert resumed
    check(app, out, tmp_path / "fed" / "state", settings, tmp_path / "here")
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert [row["round"] for row in rows] == list(range(21))
    faults = (out / "faults.jsonl").read_text()
    assert "state lost" not in faults
    assert "handed_over" in faults


def test_what_flower_adds_to_a_reply_and_compression_alone() -> None:
    """Checks that need Flower's classes, in its environment."""
    script = Path(__file__).with_name("inside.py")
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "FLWR_TELEMETRY_ENABLED": "0"}
    command = [str(BIN / "python"), str(script)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["overhead"]["message"] <= found["overhead"]["objects"] <= 600
    assert found["whole"]["mean"] == pytest.approx(0.115, abs=1e-3)
    assert found["whole"]["spread"] < 1e-3
    assert found["whole"]["share"] < 0.3  # of the bytes of a dense reply
    assert found["damaged"]["mean"] == pytest.approx(0.12, abs=1e-3)  # the other node's alone
    assert found["whole"]["steps"] == found["damaged"]["steps"] == 3
    assert "biased" in found["refused"]
    one, other = (hashlib.sha256(key).hexdigest() for key in (b"a", b"b"))
    assert found["admitted"]["asked"] in (
        [[0, one], [0, one], [0, other]],
        [[0, other], [0, other], [0, one]],
    )
    assert sorted(found["admitted"]["called"]) == [11, 12]
    assert found["admitted"]["heard"] == [0, 0]  # the second node of the two, and one without a key
    for name, (mean, named, lines, escapes) in found["hostile"].items():
        assert (mean, named, lines, escapes) == (0.125, 1, 1, False), name  # the mean of nodes 12 and 13
    corrected = found["corrected"]
    assert corrected["first"] == [[], [0, 1]]  # node 11 fails as client 0, and nobody is client 1
    assert corrected["second"] == [[0, 1], []]
    assert len(corrected["told"]) == 1
    assert corrected["told"][0].isprintable()


@pytest.mark.skipif(not LONG, reason="takes a minute: make deploy-test")
@pytest.mark.skipif(not list(BIN.parent.glob("lib/*/site-packages/ray")), reason="needs flwr[simulation]")
def test_the_same_app_runs_in_flowers_simulation(tmp_path: Path) -> None:
    app, out, settings = tmp_path / "digits", tmp_path / "out", "run.rounds=2"
    new(app, CLIENTS)
    with federation(tmp_path / "fed", 0, ("--insecure", "--simulation")) as fed:
        fed.environment["FEDCOM_STATE"] = str(tmp_path / "state")
        started = fed.run(app, out, settings, "--federation-config", f"num-supernodes={CLIENTS}")
        assert started.returncode == 0, started.stdout + started.stderr
        fed.wait_for(out / "summary.json", '"status": "done"')
    check(app, out, None, settings, tmp_path / "here")
