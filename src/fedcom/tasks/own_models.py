"""A module class or function of the user's own as a Model: its arguments become settings under [model]."""

import inspect
import re
from collections.abc import Sequence
from dataclasses import field, fields, make_dataclass
from math import prod
from typing import Any, get_type_hints

from torch import nn

from fedcom.errors import ConfigError
from fedcom.tasks.model import Model

_SETTINGS = (int, float, bool, str)  # whose annotations are checked; others take anything


def as_model(thing: Any) -> Any:
    """A Model that calls a class derived from nn.Module, or a function; anything else as it is.

    Arguments named shape (of a sample), in_features, in_channels, classes, num_classes and out_features are
    filled in from the data unless they are set.
    """
    is_module = isinstance(thing, type) and issubclass(thing, nn.Module)
    if not is_module and (isinstance(thing, type) or not callable(thing)):
        return thing
    try:
        parameters = inspect.signature(thing).parameters.values()
        hints = get_type_hints(thing.__init__ if is_module else thing)
    except (ValueError, TypeError, NameError):
        return thing
    settings = [
        (p.name, *_setting(p, hints.get(p.name)))
        for p in parameters
        if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)
    ]
    name = re.sub(r"[^\w.]", "-", f"{thing.__module__}.{thing.__qualname__}")
    words = inspect.getdoc(thing) if thing.__doc__ else f"{thing.__module__}.{thing.__qualname__}."
    space = {
        "name": name,
        "module": _module(thing, [key for key, *_ in settings]),
        "__doc__": words,
        "__module__": thing.__module__,
        "__qualname__": thing.__qualname__,
    }
    if any(key == "batch_norm" for key, *_ in settings):  # it is the module's own
        space["norms"] = lambda self: None
    return make_dataclass(thing.__name__, settings, bases=(Model,), namespace=space, frozen=True)


def _setting(parameter: inspect.Parameter, hint: Any) -> tuple[Any, Any]:
    """The annotation and the field of one argument; one without a default is None until it is set."""
    default = None if parameter.default is parameter.empty else parameter.default
    kind = hint if hint in _SETTINGS else type(default) if isinstance(default, _SETTINGS) else object
    kind = kind if default is not None else kind | None
    if isinstance(default, list | dict | set):
        return object, field(default_factory=lambda: default, metadata={"needed": False})
    return kind, field(default=default, metadata={"needed": parameter.default is parameter.empty})


def _module(thing: Any, arguments: Sequence[str]) -> Any:
    def module(self: Any, shape: tuple[int, ...], classes: int) -> nn.Module:
        """The user's module, with what it needs to know of the data."""
        known = {
            "shape": shape,
            "in_features": prod(shape),
            "in_channels": shape[0] if shape else 1,
            "classes": classes,
            "num_classes": classes,
            "out_features": classes,
        }
        given = {name: getattr(self, name) for name in arguments}
        given |= {key: known[key] for key, value in given.items() if value is None and key in known}
        for f in fields(self):
            if f.metadata.get("needed") and given.get(f.name) is None:
                raise ConfigError(f"model {self.name} needs {f.name}; set model.{f.name}=...")
        try:
            made = thing(**given)
        except ConfigError:
            raise
        except Exception as error:
            told = " ".join(f"{type(error).__name__}: {error}".split())[:200]
            raise ConfigError(f"model {self.name} cannot be made: {told}") from error
        if not isinstance(made, nn.Module):
            raise ConfigError(f"model {self.name} must be a torch.nn.Module; got {type(made).__name__}")
        return made

    return module
