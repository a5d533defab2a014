"""TLS and authentication of nodes, with the commands of docs/deployment.md."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.conftest import CHAOS
from tests.deployment.federation import MISSING, PATIENCE, ROOT, Federation, federation

TOOLS = all(map(shutil.which, ("openssl", "ssh-keygen")))
pytestmark = [
    pytest.mark.skipif(MISSING is not None, reason=str(MISSING)),
    pytest.mark.skipif(not TOOLS, reason="needs openssl and ssh-keygen"),
]
SCRIPT = Path(__file__).with_name("certificates.sh")


def test_only_registered_nodes_with_the_certificate_are_let_in(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.mkdir()
    command = ["sh", str(SCRIPT), "127.0.0.1", "node-0", "node-1"]
    subprocess.run(command, cwd=keys, check=True, capture_output=True)
    superlink = ["--ssl-ca-certfile", str(keys / "ca.crt"), "--ssl-certfile", str(keys / "server.crt")]
    superlink += ["--ssl-keyfile", str(keys / "server.key"), "--enable-supernode-auth"]
    with federation(tmp_path / "fed", 4, superlink, apps=False) as fed:
        registered = fed.flwr("supernode", "register", str(keys / "node-0.pub"), "here")
        assert registered.returncode == 0, registered.stdout + registered.stderr
        root = ["--root-certificates", str(keys / "ca.crt")]
        fed.node(0, [*root, "--auth-supernode-private-key", str(keys / "node-0")])
        fed.node(1, [*root, "--auth-supernode-private-key", str(keys / "node-1")])  # an unknown key
        if CHAOS:
            fed.node(2, root)  # no key
        fed.node(3, ["--insecure"])  # no certificate
        fed.wait_for(tmp_path / "fed" / "node-0.log", "SuperNode ID")
        for client in (1, 2) if CHAOS else (1,):
            assert fed.processes[f"node-{client}"].wait(PATIENCE) != 0
        for client in (1, 2, 3) if CHAOS else (1, 3):
            assert "SuperNode ID" not in log(fed, client)
        assert fed.processes["node-0"].poll() is None
        listed = fed.flwr("supernode", "list", "here")
        assert len(re.findall("online", listed.stdout)) == 1, listed.stdout


def log(fed: Federation, client: int) -> str:
    return (fed.folder / f"node-{client}.log").read_text()


def test_the_page_shows_the_commands_that_are_tested() -> None:
    page = (ROOT / "docs" / "deployment.md").read_text()
    for line in SCRIPT.read_text().splitlines():
        if line.strip().startswith(("openssl", "ssh-keygen", "printf")):
            assert " ".join(line.split()) in " ".join(page.split()), line
    for option in ("--enable-supernode-auth", "--auth-supernode-private-key", "--root-certificates"):
        assert option in page
