"""The app that all commands belong to, carried out by rank 0 of a job; and what an error is told as."""

import inspect
import os
import shlex
import sys
from collections.abc import Callable
from typing import Annotated, Any, TypeVar

import typer
from typer.core import TyperCommand, TyperGroup

from fedcom.cli import crash, streams
from fedcom.errors import FedcomError, Stopped
from fedcom.runs import stops
from fedcom.version import VERSION

F = TypeVar("F", bound=Callable[..., Any])


def _without_types(params: list[Any]) -> list[Any]:
    """The parameters of a command; its help shows no type of flags without a value and of lists of words."""
    for param in params:
        if getattr(param, "is_flag", False) or param.nargs == -1:
            param.display_type_rich = lambda ctx: None
    return params


class _Group(TyperGroup):
    """A group of commands."""

    def get_params(self, ctx: Any) -> list[Any]:
        return _without_types(super().get_params(ctx))


class _Command(TyperCommand):
    """A command that is carried out by rank 0 of a job; what was typed is understood before torch comes."""

    def get_params(self, ctx: Any) -> list[Any]:
        return _without_types(super().get_params(ctx))

    def invoke(self, ctx: Any) -> Any:
        with streams.meanwhile(f"{ctx.command_path}: starting", ctx.params.get("quiet")):
            from fedcom.engines.ranks.ranks import join

        ranks = join()
        if ranks.size > 1 and len({*ranks.agree(shlex.join(sys.argv[1:]))}) > 1 and ranks.rank == 0:
            streams.complain("ranks were started with different arguments; those of rank 0 count for all")
        return super().invoke(ctx) if ranks.rank == 0 else _follow()


class App(typer.Typer):
    """A group of such commands, with help that is wrapped where the terminal ends."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(cls=_Group, **settings)

    def command(self, *args: Any, **settings: Any) -> Callable[[F], F]:
        def add(function: F) -> F:
            paragraphs = inspect.cleandoc(function.__doc__ or "").split("\n\n")
            words = "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)
            command = super(App, self).command(*args, cls=_Command, **{"help": words, **settings})
            return command(function)

        return add


app = App(
    help="Communication-efficient federated learning: compare methods by rounds, bytes and accuracy.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(show: bool) -> None:
    if show:
        print(f"fedcom {VERSION}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


def _follow() -> None:
    """Play this rank's part; what ends it is told by rank 0."""
    from fedcom.engines.ranks.ranks import here
    from fedcom.runs.follow import follow
    from fedcom.studies import compare
    from fedcom.studies.trial_runs import TRIAL_DUTY, play_item

    duties = {TRIAL_DUTY: play_item, compare.RUN_DUTY: compare.play_item}
    stops.leave_to_others()
    try:
        follow(here(), duties)
    except Stopped as stopped:  # while it played runs by itself
        os._exit(stopped.exit_code)
    except Exception as error:
        os._exit(told_code(error))


def told_code(error: Exception) -> int:
    """Say what an error is in one line; returns the exit code. With FEDCOM_DEBUG a bug is raised instead."""
    if isinstance(error, FedcomError):
        streams.complain(error)
        return error.exit_code
    from fedcom.runs.record import out_of_memory

    if short := out_of_memory(error):
        streams.complain(short)
        return short.exit_code
    if os.environ.get("FEDCOM_DEBUG", "0") not in ("", "0"):
        raise error
    line, code = crash.report(error)
    streams.complain(line)
    return code
