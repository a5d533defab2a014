"""fedcom flower: runs on real machines."""

from pathlib import Path
from typing import Annotated

import typer

from fedcom.cli.app import App, app
from fedcom.errors import ConfigError

flower_app = App(help="Runs on real machines, carried by Flower.", no_args_is_help=True)
app.add_typer(flower_app, name="flower")


@flower_app.command("new")
def flower_new(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A folder that is empty or does not exist.")],
    clients: Annotated[int, typer.Option(min=1, help="How many clients there will be.")] = 4,
) -> None:
    """Write a Flower app, ready for `flwr run`: in simulation and on real machines."""
    from fedcom.deployment.flower.new import new

    for path in new(folder, clients):
        print(path)
    print(f"model and data: task.py; method and codecs: fedcom.toml; start it: cd {folder} && flwr run .")


@flower_app.command("forget")
def flower_forget(
    folder: Annotated[
        Path | None,
        typer.Argument(
            metavar="DIR", help="The node's state folder; by default FEDCOM_STATE or ~/.fedcom/state."
        ),
    ] = None,
    days: Annotated[
        float, typer.Option(min=0, help="Delete the jobs in which no call was answered for this many days.")
    ] = 30.0,
    job: Annotated[
        list[str] | None, typer.Option(help="Delete only this job, whatever its age; may be repeated.")
    ] = None,
    yes: Annotated[
        bool, typer.Option("--yes", help="Delete. Without it, only list what would be deleted.")
    ] = False,
) -> None:
    """Delete what old jobs left on a client's disk.

    If a job is not over, deleting a client's state makes all clients of that job start anew.
    """
    from fedcom.engines.remote.stored import delete, stored, usual_folder
    from fedcom.formats import size

    folder = folder or usual_folder()
    if not folder.is_dir():
        raise ConfigError(f"{folder} is not a folder; name the node's state folder")
    found = stored(folder)
    if missing := set(job or ()) - {one.job for one in found}:
        raise ConfigError(f"{folder} has no state of job {', '.join(sorted(missing))}")
    for one in found:
        old = one.job in job if job else one.days >= days
        outcome = "stays" if not old else "would be deleted" if not yes else "deleted"
        if old and yes and not delete(one):
            outcome = "stays: it is in use"
        clients = ", ".join(map(str, one.clients))
        print(f"{one.job}  client {clients}  {size(one.nbytes)}  used {one.days:.1f} days ago  {outcome}")
    if not found:
        print(f"{folder} has no state of any job")
    elif not yes:
        print("nothing was deleted; --yes deletes")
