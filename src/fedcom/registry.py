"""The parts of a run by name: fedcom's own, those of other packages, and those named by their module."""

import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import MISSING, dataclass, fields
from functools import cached_property
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Generic, TypeVar, overload

from fedcom.errors import ConfigError, nearest, unknown
from fedcom.imports import PART_PACKAGES, current_folder, import_module

T = TypeVar("T")
S = TypeVar("S")
Check = Callable[[Any], None]  # raises ConfigError on what is not of the kind
OWN = "fedcom"
BY_HAND = "added by hand"
_NAME = re.compile(r"\w[\w.-]*")


@dataclass(frozen=True)
class Entry(Generic[T]):
    """Something that can be used, with its own name and where it comes from."""

    name: str
    source: str
    thing: T


@dataclass(frozen=True)
class Broken:
    """Something that a package offers and that cannot be used, with the reason."""

    name: str
    source: str
    reason: str


class Registry(Mapping[str, T]):
    """Everything of one kind by name.

    Known are fedcom's own entries, those added by hand, and those that were asked for before. What installed
    packages offer as entry points is imported when its name is asked for, or when all names are listed. A
    name with a colon, package.module:Name, is imported as it says, from the current folder too.

    Args:
        kind: what an entry is, in words, for errors.
        group: the group of entry points by which packages offer theirs.
        builtin: fedcom's own entries.
        check: raises ConfigError on something that is not of this kind.
        unique: attributes in which all entries must differ, such as a codec's id.
        adapt: makes something of this kind of what resembles it.
    """

    def __init__(
        self,
        kind: str,
        group: str,
        builtin: Mapping[str, T],
        check: Check,
        unique: Sequence[str] = (),
        adapt: Callable[[Any], Any] = lambda thing: thing,
    ) -> None:
        self.kind, self.group = kind, group
        self._check, self._unique, self._adapt = check, unique, adapt
        self._known = {name: Entry(name, OWN, thing) for name, thing in builtin.items()}  # by what one writes

    @property
    def title(self) -> str:
        """The kind in the plural, in one word: codecs."""
        return self.group.rpartition(".")[2]

    def __getitem__(self, name: str) -> T:
        return self.find(name)

    def __setitem__(self, name: str, thing: T) -> None:
        self.add(thing, name=name)

    def __delitem__(self, name: str) -> None:
        """Forget an entry that was added by hand."""
        if name not in self._known or self._known[name].source != BY_HAND:
            raise ConfigError(f"{self.kind} {name!r} was not added by hand, so it cannot be removed")
        del self._known[name]

    def __iter__(self) -> Iterator[str]:
        """The names of all that can be used; this imports what packages offer."""
        return (entry.name for entry in self.entries() if isinstance(entry, Entry))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __contains__(self, name: object) -> bool:
        """Whether a name can be used; False for a package.module:Name that was not asked for before."""
        if isinstance(name, str) and ":" in name:
            return name in self._known
        try:
            self.find(name)
        except ConfigError:
            return False
        return True

    def get(self, name: str, default: Any = None) -> Any:
        """The entry of that name, or the default."""
        return self.find(name) if name in self else default

    def find(self, name: object, kind: str | None = None) -> T:
        """The entry of that name, imported if need be; kind: what an error calls it."""
        if isinstance(name, str) and ":" in name:
            return self._by_module(name)
        if isinstance(name, str):
            if not self.is_own(name):
                self._load(name)
            if name in self._known:
                return self._known[name].thing
        raise unknown(kind or self.kind, name, self.names())

    @overload
    def add(self, thing: S, *, name: str | None = None) -> S: ...

    @overload
    def add(self, thing: None = None, *, name: str) -> Callable[[S], S]: ...

    def add(self, thing: Any = None, *, name: str | None = None) -> Any:
        """Register something under a name, by default its own; also as a decorator."""
        if thing is None:
            return lambda decorated: self.add(decorated, name=name)
        key = getattr(thing, "name", None) if name is None else name
        if not isinstance(key, str):
            raise ConfigError(f"a {self.kind} needs a name; got {key!r}; give it one, as in name='mine'")
        self._admit(key, thing, BY_HAND)
        return thing

    def vet(self, thing: Any) -> None:
        """Raise ConfigError on something that could not be added: not of this kind, or its name is taken."""
        if not any(thing is entry.thing for entry in self._known.values()):
            with self._blaming(getattr(thing, "name", str(thing)), "not registered"):
                self._check(thing)
                self._refuse_clash(thing.name, thing)

    def where(self, name: str) -> str:
        """Where an entry comes from: fedcom, a package and its version, a module, or by hand."""
        self.find(name)
        return self._known[name].source if name in self._known else OWN

    def name_of(self, thing: Any) -> str:
        """The name by which an entry can be found again; its own if it was never registered."""
        names = (key for key, entry in self._known.items() if entry.thing is thing)
        return next(names, None) or str(thing.name)

    def is_own(self, name: object) -> bool:
        """Whether a name is that of one of fedcom's own."""
        return isinstance(name, str) and name in self._known and self._known[name].source == OWN

    def names(self) -> list[str]:
        """All names there are, without importing anything."""
        return list(dict.fromkeys([*(key for key in self._known if ":" not in key), *self._offers]))

    def entries(self) -> list[Entry[T] | Broken]:
        """All there is, imported; what cannot be used comes with the reason."""
        own = [entry for entry in self._known.values() if entry.source == OWN]
        others = [name for name in self.names() if not self.is_own(name) or name in self._offers]
        return [*own, *map(self._entry, others)]

    def _entry(self, name: str) -> Entry[T] | Broken:
        """What was added by hand or is offered by packages under a name."""
        try:
            self._load(name)
        except ConfigError as error:
            return Broken(name, " and ".join(map(_package, self._offers[name])), str(error))
        return self._known[name]

    @cached_property
    def _offers(self) -> dict[str, list[EntryPoint]]:
        """What installed packages say they offer, by name; nothing of theirs is imported for it."""
        found: dict[str, list[EntryPoint]] = {}
        for point in entry_points(group=self.group):
            found.setdefault(point.name, []).append(point)
        return found

    def _load(self, name: str) -> None:
        """Import what packages offer under a name."""
        for point in self._offers.get(name, ()):
            with self._blaming(name, _package(point)):
                thing = self._resolve(point.value.partition("[")[0].strip())  # extras are told in brackets
            self._admit(name, thing, _package(point))

    def _by_module(self, name: str) -> T:
        """The thing that package.module:Name says."""
        if name in self._known:
            return self._known[name].thing
        with self._blaming(name, f"module {name}"), current_folder():
            thing: T = self._resolve(name)
        own = any(thing is entry.thing for entry in self._known.values() if entry.source == OWN)
        return thing if own else self._admit(name, thing, f"module {name}")

    def _resolve(self, text: str) -> Any:
        """What package.module:Name means; Name may have dots, for something within a class."""
        module, _, path = text.partition(":")
        if not names_code(text):
            raise ConfigError(f"{text!r} is not of the form package.module:Name, such as mine:Fast")
        found = top = import_module(module)
        for attribute in path.split("."):
            if not hasattr(found, attribute):
                fitting = [name for name, thing in vars(top).items() if self._fits(thing, module)]
                hint = nearest(path, fitting) if fitting else f"nothing in it is a {self.kind}"
                raise ConfigError(f"module {module} has no {path}; {hint}")
            found = getattr(found, attribute)
        return found

    def _fits(self, thing: Any, module: str) -> bool:
        """Whether something that a module defines is of this kind."""
        if getattr(thing, "__module__", None) != module:
            return False
        try:
            self._check(self._adapt(thing))
        except ConfigError:
            return False
        return True

    def _admit(self, key: str, thing: Any, source: str) -> T:
        """Remember a newcomer, after checking that it is of this kind and that its name is free."""
        with self._blaming(key, source):
            thing = self._adapt(thing)
            self._check(thing)
            name = getattr(thing, "name", key)  # a function has none but the one by which it is known
            if source != f"module {key}":
                _check_name(key)
                if name != key:
                    raise ConfigError(f"it calls itself {name!r}; give both one name")
            self._refuse_clash(name, thing)
        PART_PACKAGES.add(str(getattr(thing, "__module__", "")).partition(".")[0])
        if not self.is_own(key):
            self._known[key] = Entry(name, source, thing)
        return self._known[key].thing

    def _refuse_clash(self, name: str, thing: Any) -> None:
        """Refuse a newcomer that shares its name, or an attribute in `unique`, with another entry."""
        for other in self._known.values():
            if _same(other.thing, thing):
                continue
            if other.name == name:
                _refuse_inherited(thing)
                raise ConfigError(
                    f"the name {name!r} is taken ({other.source}); rename one, or leave one out"
                )
            for key in self._unique:
                value = getattr(thing, key)
                if getattr(other.thing, key) == value:
                    raise ConfigError(
                        f"its {key} {value} is that of {other.name!r} ({other.source}); change one"
                    )

    @contextmanager
    def _blaming(self, name: str, source: str) -> Iterator[None]:
        """Say in an error which entry is at fault, and where it comes from."""
        try:
            yield
        except ConfigError as error:
            whose = "" if source == f"module {name}" else f" ({source})"
            raise ConfigError(f"{self.kind} {name!r}{whose} cannot be used: {error}") from None


def derived_from(base: type, otherwise: str = "") -> Check:
    """The check of a class: derived from base, complete, a dataclass whose fields all have defaults.

    Args:
        otherwise: what else will do, in words, for errors.
    """

    also = otherwise and f" {otherwise}"

    def check(thing: Any) -> None:
        if not isinstance(thing, type) or not issubclass(thing, base):
            raise ConfigError(
                f"{_words(thing)} is no class derived from {base.__name__}{also}; name one that is"
            )
        if inspect.isabstract(thing):
            lacking = ", ".join(sorted(getattr(thing, "__abstractmethods__", ())))
            raise ConfigError(f"class {thing.__name__} is abstract; it lacks {lacking}")
        if "__dataclass_fields__" not in vars(thing):
            raise ConfigError(f"class {thing.__name__} is no dataclass; decorate it: @dataclass(frozen=True)")
        for field in fields(thing):  # type: ignore[arg-type]
            if field.init and field.default is MISSING and field.default_factory is MISSING:
                raise ConfigError(f"field {field.name} of {thing.__name__} has no default; give it one")
        name = getattr(thing, "name", None)
        if not isinstance(name, str):
            raise ConfigError(f"class {thing.__name__} has no name; add name: ClassVar[str] = 'mine'")
        _check_name(name)

    return check


def accepts(function: Any, *arguments: Any) -> bool:
    """Whether a function can be called with some arguments; True if one written in C does not say."""
    try:
        signature = inspect.signature(function)
    except (ValueError, TypeError):
        return True
    try:
        signature.bind(*arguments)
    except TypeError:
        return False
    return True


def function_of(what: str, or_nothing: bool = False) -> Check:
    """The check of a function that is called with one argument.

    Args:
        what: that argument, in words.
        or_nothing: whether it may take no argument instead.
    """

    def check(thing: Any) -> None:
        if not callable(thing):
            raise ConfigError(f"{_words(thing)} is no function of {what}; name one that is")
        if not (accepts(thing, None) or (or_nothing and accepts(thing))):
            taken, alone = inspect.signature(thing), " or nothing" if or_nothing else " alone"
            raise ConfigError(f"{_words(thing)} takes {taken}; it must take {what}{alone}")

    return check


def describe(thing: Any) -> str:
    """The first line of a thing's docstring."""
    return next(iter((inspect.getdoc(thing) or "").splitlines()), "")


def names_code(text: str) -> bool:
    """Whether a text is of the form package.module:Name, perhaps with settings in brackets behind it."""
    text = text.partition("(")[0].strip()
    return ":" in text and all(part.isidentifier() for part in text.replace(":", ".", 1).split("."))


def short_name(name: str) -> str:
    """A name that can be part of a folder's: itself, or what follows the colon of package.module:Name."""
    return name.rpartition(":")[2]


def _check_name(name: str) -> None:
    """Refuse a name that could not be part of a folder's."""
    if not _NAME.fullmatch(name):
        raise ConfigError(f"a name is made of letters, digits, dots and dashes; got {name!r}")


def _refuse_inherited(thing: Any) -> None:
    """Raise ConfigError on a class that has no name of its own but that of a class it derives from."""
    if isinstance(thing, type) and "name" not in vars(thing):
        base = next(one for one in thing.__mro__ if "name" in vars(one))
        raise ConfigError(
            f"class {thing.__name__} has no name but that of {base.__name__}, from which it derives; give it "
            f"its own: name: ClassVar[str] = {thing.__name__.lower()!r}"
        )


def _same(one: Any, other: Any) -> bool:
    """Whether two are one, or one is the other defined again, as a notebook does with a cell run twice."""
    if one is other:
        return True
    places = [(getattr(x, "__module__", None), getattr(x, "__qualname__", "<none>")) for x in (one, other)]
    return places[0] == places[1] and "<" not in places[0][1]


def _package(point: EntryPoint) -> str:
    """The package that offers an entry point."""
    return f"package {point.dist.name} {point.dist.version}" if point.dist else f"entry point {point.value}"


def _words(thing: Any) -> str:
    """What something is, for an error."""
    kind = "class" if isinstance(thing, type) else type(thing).__name__
    return f"{kind} {getattr(thing, '__name__', repr(thing))}"
