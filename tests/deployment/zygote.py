"""A process that has imported Flower, torch and fedcom, and forks for every app that Flower starts.

    python zygote.py SOCKET PIDS      PIDS: a folder with one file per app, named after it and its process

`shims` writes the commands that Flower starts, flwr-clientapp and flwr-serverapp; they ask the zygote for a
process and wait for its end. Flower alone would import everything for each message, which takes seconds.
"""

import json
import os
import socket
import sys
from pathlib import Path

APPS = ("flwr-clientapp", "flwr-serverapp")
_SHIM = """#!{python} -IS
import json, os, socket, sys
s = socket.socket(socket.AF_UNIX)
s.connect({socket!r})
socket.send_fds(s, [b"-"], [0, 1, 2])
s.sendall(json.dumps([sys.argv, dict(os.environ), os.getcwd()]).encode())
s.shutdown(socket.SHUT_WR)
sys.exit(int(s.recv(16) or b"1"))
"""


def shims(folder: Path, place: Path) -> None:
    """Write the commands into a folder."""
    folder.mkdir()
    for name in APPS:
        path = folder / name
        path.write_text(_SHIM.format(python=sys.executable, socket=str(place)))
        path.chmod(0o755)


def serve(place: Path, pids: Path) -> None:
    from flwr.superlink.cli import flwr_serverapp
    from flwr.supernode.cli import flwr_clientapp
    from sklearn import datasets  # noqa: F401

    from fedcom.deployment.flower import apps  # noqa: F401

    mains = dict(zip(APPS, (flwr_clientapp, flwr_serverapp), strict=True))
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(place))
    listener.listen(64)
    while True:
        asked, _ = listener.accept()
        if os.fork():
            asked.close()
            while True:  # collect those that have ended
                try:
                    if os.waitpid(-1, os.WNOHANG)[0] == 0:
                        break
                except ChildProcessError:
                    break
            continue
        listener.close()
        _, streams, *_ = socket.recv_fds(asked, 1, 3)
        with asked.makefile("rb") as file:
            text = file.read()
        child = os.fork()
        if child:
            _, status = os.waitpid(child, 0)
            asked.sendall(str(os.waitstatus_to_exitcode(status) & 255).encode())
            os._exit(0)
        argv, environment, folder = json.loads(text)
        for descriptor, stream in enumerate(streams):
            os.dup2(stream, descriptor)
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(environment)
        sys.argv, name = argv, Path(argv[0]).name
        (pids / f"{name}-{os.getpid()}").touch()
        try:
            mains[name]()
        except SystemExit as end:
            os._exit(end.code if isinstance(end.code, int) else 1 if end.code else 0)
        except BaseException:
            import traceback

            traceback.print_exc()
            os._exit(1)
        os._exit(0)


if __name__ == "__main__":
    serve(Path(sys.argv[1]), Path(sys.argv[2]))
