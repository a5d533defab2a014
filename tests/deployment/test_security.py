"""TLS and authentication of nodes, with the commands of docs/deployment.md and docs/operations.md."""

import configparser
import re
import shlex
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
    superlink = options_of(compose()["superlink"], {"/keys": str(keys)}, without=("--host", "--port"))
    with federation(tmp_path / "fed", 4, superlink, apps=False) as fed:
        registered = fed.flwr("supernode", "register", str(keys / "node-0.pub"), "here")
        assert registered.returncode == 0, registered.stdout + registered.stderr
        unit = configparser.ConfigParser(interpolation=None, strict=False)
        unit.read_string(shown("ini").replace("\\\n", ""))
        own = ("--superlink", "--node-config")
        fed.node(0, options_of(unit["Service"]["ExecStart"], {"/etc/fedcom": str(keys)}, own))
        second = {"/keys": str(keys), "${CLIENT}": "1"}
        fed.node(1, options_of(compose()["client"], second, own))  # an unknown key
        root = ["--root-certificates", str(keys / "ca.crt")]
        if CHAOS:
            fed.node(2, root)  # no key
            fed.node(3, ["--insecure"])  # no certificate
        fed.wait_for(tmp_path / "fed" / "node-0.log", "SuperNode ID")
        for client in (1, 2) if CHAOS else (1,):
            assert fed.processes[f"node-{client}"].wait(PATIENCE) != 0
        for client in (1, 2, 3) if CHAOS else (1,):
            assert "SuperNode ID" not in log(fed, client)
        assert fed.processes["node-0"].poll() is None
        if CHAOS:
            listed = fed.flwr("supernode", "list", "here")
            assert len(re.findall("online", listed.stdout)) == 1, listed.stdout


def shown(language: str) -> str:
    """The block of a language in docs/operations.md."""
    page = (ROOT / "docs" / "operations.md").read_text()
    (found,) = re.findall(rf"```{language}\n(.*?)```", page, re.DOTALL)
    return str(found)


def compose() -> dict[str, str]:
    """The commands of the page's compose file, by service."""
    yaml = pytest.importorskip("yaml")
    return {name: service["command"] for name, service in yaml.safe_load(shown("yaml"))["services"].items()}


def options_of(command: str, values: dict[str, str], without: tuple[str, ...]) -> list[str]:
    """The options of a command with its places filled in, but for some of which each has a value."""
    for name, value in values.items():
        command = command.replace(name, value)
    words = shlex.split(command)[1:]
    dropped = {i for option in without for i in (words.index(option), words.index(option) + 1)}
    return [word for i, word in enumerate(words) if i not in dropped]


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    unit = tmp_path / "fedcom-client.service"
    unit.write_text(shown("ini").replace("/opt/fedcom/bin/flower-supernode", shutil.which("true") or "true"))
    done = subprocess.run(
        ["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, check=False
    )
    assert str(unit) not in done.stdout + done.stderr
    assert unit.name not in done.stdout + done.stderr


def log(fed: Federation, client: int) -> str:
    return (fed.folder / f"node-{client}.log").read_text()


def test_the_page_shows_the_commands_that_are_tested() -> None:
    page = (ROOT / "docs" / "deployment.md").read_text()
    for line in SCRIPT.read_text().splitlines():
        if line.strip().startswith(("openssl", "ssh-keygen", "printf")):
            assert " ".join(line.split()) in " ".join(page.split()), line
    for option in ("--enable-supernode-auth", "--auth-supernode-private-key", "--root-certificates"):
        assert option in page
