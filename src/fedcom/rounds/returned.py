"""What a method that is not fedcom's own returns: refused in one line if it has another shape.

Each function returns what it is given. It looks at types, shapes and dtypes, never at values, so a GPU is not
waited for; what fedcom's own methods return is not looked at.
"""

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor

from fedcom.algorithms import Algorithm
from fedcom.algorithms.base import Round
from fedcom.algorithms.local_optimisers import LocalOptimiser
from fedcom.algorithms.optimisers import Optimiser
from fedcom.errors import ConfigError
from fedcom.formats import described
from fedcom.vectors import Vectors

_PACKAGE = __name__.partition(".")[0]


def begun(algorithm: Algorithm, method: str, state: Any, needs: tuple[str, ...] = ()) -> Any:
    """What init_server or init_client returned: a named tuple of tensors.

    Args:
        needs: the fields that it must have.
    """
    if _others(algorithm):
        fields = getattr(state, "_fields", ())
        wrong = [name for name in fields if not isinstance(getattr(state, name), Tensor)]
        if not isinstance(state, tuple) or not hasattr(state, "_fields"):
            raise _refusal(algorithm, method, "a NamedTuple of tensors", described(state))
        if wrong:
            found = described(getattr(state, wrong[0]))
            raise _refusal(algorithm, method, "a NamedTuple of tensors", f"{found} as {wrong[0]}")
        if missing := [name for name in needs if name not in fields]:
            raise _refusal(algorithm, method, f"a NamedTuple with {missing[0]}", f"one of {_listed(fields)}")
    return state


def tracked(algorithm: Algorithm, w: Tensor, state: Any) -> None:
    """Refuse a server's state without what the method needs to make up for a lossy downlink.

    A class that inherits `reply` or `settle_server` inherits what they read: fields of their class's state.

    Args:
        w: a model.
    """
    for line in ("reply", "settle_server") if _others(algorithm) else ():
        owner: Any = next(kind for kind in type(algorithm).__mro__ if line in vars(kind))
        needs = owner.init_server(algorithm, w)._fields
        if missing := [name for name in needs if name not in state._fields]:
            lacking, has = _listed(missing), _listed(state._fields)
            raise ConfigError(
                f"method {algorithm.name}: over a lossy downlink, {owner.__name__}'s {line} needs {lacking} "
                f"in the server's state, and init_server returned {has}; add {lacking} as "
                f"{owner.__name__}'s init_server has it, or set corrects_downlink = False in the class, "
                "which gives the downlink a memory instead"
            )


@contextmanager
def read() -> Iterator[None]:
    """Inside, a state that lacks what fedcom's own line of a method reads is refused in one line."""
    try:
        yield
    except AttributeError as error:
        *_, (frame, _) = traceback.walk_tb(error.__traceback__)
        state, line = type(error.obj), frame.f_code.co_qualname
        theirs = hasattr(state, "_fields") and not _own(state.__module__)
        if not (theirs and _own(frame.f_globals["__name__"])):
            raise
        raise ConfigError(
            f"state {state.__name__} has no field {error.name}, which fedcom's {line} reads; give it one, or "
            "override that line of the method"
        ) from error


def sent_down(algorithm: Algorithm, vectors: Any) -> Vectors:
    """What broadcast returned: tensors by name, the model as w among them."""
    if _others(algorithm):
        named = isinstance(vectors, dict) and all(isinstance(x, Tensor) for x in vectors.values())
        if not named or "w" not in vectors:
            found = _listed(vectors) if named else described(vectors)
            raise _refusal(algorithm, "broadcast", "tensors by name, the model as w among them", found)
        for name, x in vectors.items():
            _check(algorithm, "broadcast", f"{name} like the model", vectors["w"], x)
    return vectors  # type: ignore[no-any-return]


def replicated(algorithm: Algorithm, vectors: Vectors, moments: Vectors) -> None:
    """Refuse what clients that repeat the server's step would be sent, if it is not like the model.

    Args:
        vectors: what replica returned.
        moments: of the server's optimiser.
    """
    told = ((algorithm, "replica", vectors), (algorithm.server, "init", moments))
    for one, method, found in told:
        for name, x in found.items() if _others(one) else ():
            what = f"{name} like the model, as clients repeat the server's step"
            _check(one, method, what, vectors["w"], x)


def moved(algorithm: Algorithm, w: Tensor, after: Any) -> Tensor:
    """What local_step returned: models of the same shape and dtype as before.

    Args:
        w: the models before.
    """
    if _others(algorithm):
        _check(algorithm, "local_step", "the clients' models", w, after)
    return after  # type: ignore[no-any-return]


def moments(optimiser: Optimiser, found: Any) -> Vectors:
    """What an optimiser's init returned: tensors by name."""
    if _others(optimiser):
        if not isinstance(found, dict):
            raise _refusal(optimiser, "init", "tensors by name", described(found))
        for name, x in found.items():
            if not isinstance(x, Tensor):
                raise _refusal(optimiser, "init", "tensors by name", f"{described(x)} as {name}")
    return found  # type: ignore[no-any-return]


def optimised(optimiser: Optimiser, w: Tensor, moments: Vectors, after: Any) -> tuple[Tensor, Vectors]:
    """What an optimiser's step returned: models, or the server's, and moments like those before.

    Args:
        w: what was before, or vectors of its shape.
    """
    if _others(optimiser):
        models = ("models", "clients' models") if isinstance(optimiser, LocalOptimiser) else ("model",) * 2
        pair = isinstance(after, tuple) and len(after) == 2 and isinstance(after[1], dict)
        if not pair or {*after[1]} != {*moments}:
            found = _listed(after[1]) if pair else described(after)
            raise _refusal(optimiser, "step", f"the {models[0]} and the moments {_listed(moments)}", found)
        _check(optimiser, "step", f"the {models[1]}", w, after[0])
        for name, x in moments.items():
            _check(optimiser, "step", f"{name} of the moments", x, after[1][name])
    return after  # type: ignore[no-any-return]


def direction(algorithm: Algorithm, server: Any, mean: Vectors, rnd: Round) -> Tensor:
    """What server_direction returns: a vector like the model."""
    found = algorithm.server_direction(server, mean, rnd)
    if _others(algorithm):
        _check(algorithm, "server_direction", "a vector like the model", server.w, found)
    return found


def uploaded(algorithm: Algorithm, w: Tensor, vectors: Any) -> Vectors:
    """What upload returned: the vectors that `uploads` names, in its order, each with one row per client.

    Args:
        w: the clients' models.
    """
    return _by_name(algorithm, "upload", "uploads", w, "with one row per client", vectors)


def measured(algorithm: Algorithm, w: Tensor, numbers: Any) -> Vectors:
    """What measure returned: the numbers that `numbers` names, in its order, each in a column.

    Args:
        w: the clients' models.
    """
    return _by_name(algorithm, "measure", "numbers", w[..., :1], "with one number per client", numbers)


def _by_name(algorithm: Algorithm, method: str, listed: str, like: Tensor, shape: str, found: Any) -> Vectors:
    """Tensors by name, as an attribute of the method lists them, in its order."""
    if not _others(algorithm):
        return found  # type: ignore[no-any-return]
    names = getattr(algorithm, listed)
    if not isinstance(found, dict) or {*found} != {*names}:
        given = f"a dict of {_listed(found)}" if isinstance(found, dict) else described(found)
        raise _refusal(algorithm, method, f"a dict of {_listed(names)}, as `{listed}` says", given)
    for name in names:
        _check(algorithm, method, f"{name} {shape}", like, found[name])
    return {name: found[name] for name in names}


def stepped(algorithm: Algorithm, method: str, before: Any, after: Any) -> Any:
    """What begin, client_step or server_step returned: a state like the one before."""
    if _others(algorithm):
        if type(after) is not type(before):
            raise _refusal(algorithm, method, f"a state as it came, {described(before)}", described(after))
        for name, old, new in zip(before._fields, before, after, strict=True):
            _check(algorithm, method, f"{name} of the state", old, new)
    return after


def _others(algorithm: Algorithm | Optimiser) -> bool:
    """Whether a method or an optimiser is not fedcom's own."""
    return not _own(type(algorithm).__module__)


def _own(module: str) -> bool:
    return module.partition(".")[0] == _PACKAGE


def _check(algorithm: Algorithm | Optimiser, method: str, what: str, like: Tensor, found: Any) -> None:
    """Refuse what has not the shape and dtype of another tensor."""
    if described(found) != described(like):
        raise _refusal(algorithm, method, f"{what}, {described(like)}", described(found))


def _refusal(algorithm: Algorithm | Optimiser, method: str, wanted: str, found: str) -> ConfigError:
    kind = "method" if isinstance(algorithm, Algorithm) else f"{algorithm.section} optimiser"
    return ConfigError(f"{kind} {algorithm.name}: {method} must return {wanted}; got {found}")


def _listed(names: Any) -> str:
    return ", ".join(map(str, names)) or "nothing"
