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

    Built-in entries are looked up first, and nothing else is read for them. Then come those added by hand and
    those that installed packages offer as entry points; a package is imported when one of its names is asked
    for, or when all names are listed. A name with a colon, package.module:Name, is imported as it says, from
    the current folder too.

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
        self._builtin = dict(builtin)
        self._check, self._unique, self._adapt = check, unique, adapt
        self._known: dict[str, Entry[T]] = {}  # those added or imported so far, by the name one writes

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
        if name not in self._known:
            raise ConfigError(f"{self.kind} {name!r} was not added by hand, so it cannot be removed")
        del self._known[name]

    def __iter__(self) -> Iterator[str]:
        """The names of all that can be used; this imports what packages offer."""
        return (entry.name for entry in self.entries() if isinstance(entry, Entry))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __contains__(self, name: object) -> bool:
        """Whether a name can be used; False for a package.module:Name that was not asked for before."""
        if not isinstance(name, str):
            return False
        if name in self._builtin:
            return True
        if ":" in name:
            return name in self._known
        return name in self.names() and isinstance(self._entry(name), Entry)

    def get(self, name: str, default: Any = None) -> Any:
        """The entry of that name, or the default."""
        return self.find(name) if name in self else default

    def find(self, name: object, kind: str | None = None) -> T:
        """The entry of that name, imported if need be; kind: what an error calls it."""
        if not isinstance(name, str):
            raise unknown(kind or self.kind, name, self.names())
        if name in self._builtin:
            return self._builtin[name]
        if ":" in name:
            return self._by_module(name)
        self._load(name)
        if name not in self._known:
            raise unknown(kind or self.kind, name, self.names())
        return self._known[name].thing

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
        """Raise ConfigError on something that could not be added: not of this kind, or in another's place."""
        if not any(thing is own for own in self._builtin.values()):
            with self._blaming(getattr(thing, "name", str(thing)), "not registered"):
                self._check(thing)
                self._refuse_clash(Entry(thing.name, "", thing))

    def where(self, name: str) -> str:
        """Where an entry comes from: fedcom, a package and its version, a module, or by hand."""
        self.find(name)
        return self._known[name].source if name in self._known else OWN

    def name_of(self, thing: Any) -> str:
        """The name by which an entry can be found again; its own if it was never registered."""
        known = {key: entry.thing for key, entry in self._known.items()}
        for key, other in {**self._builtin, **known}.items():
            if other is thing:
                return key
        return str(thing.name)

    def is_own(self, name: object) -> bool:
        """Whether a name is that of one of fedcom's own."""
        return isinstance(name, str) and name in self._builtin

    def names(self) -> list[str]:
        """All names there are, without importing anything."""
        added = [key for key in self._known if ":" not in key]
        return list(dict.fromkeys([*self._builtin, *added, *self._offers]))

    def entries(self) -> list[Entry[T] | Broken]:
        """All there is, imported; what cannot be used comes with the reason."""
        others = [name for name in self.names() if name not in self._builtin or name in self._offers]
        return [*self._own(), *(self._entry(name) for name in others)]

    def _own(self) -> list[Entry[T]]:
        return [Entry(name, OWN, thing) for name, thing in self._builtin.items()]

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
        if thing in self._builtin.values():
            return thing
        return self._admit(name, thing, f"module {name}", short=False)

    def _resolve(self, text: str) -> Any:
        """What package.module:Name means; the name may be that of something within a class, with dots."""
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

    def _admit(self, key: str, thing: Any, source: str, short: bool = True) -> T:
        """Remember a newcomer, once it is seen to be of this kind and to take the place of no other.

        short: whether the key is a name of its own, and not package.module:Name.
        """
        with self._blaming(key, source):
            thing = self._adapt(thing)
            self._check(thing)
            entry: Entry[T] = Entry(_own_name(key, thing, short), source, thing)
            self._refuse_clash(entry)
        PART_PACKAGES.add(str(getattr(thing, "__module__", "")).partition(".")[0])
        former = self._known.get(key)
        if former is None or source != BY_HAND or former.source == BY_HAND:
            self._known[key] = entry
        return entry.thing

    def _refuse_clash(self, newcomer: Entry[T]) -> None:
        """Refuse a name, or another thing that tells entries apart, that somebody else has."""
        for other in [*self._own(), *self._known.values()]:
            if _same(other.thing, newcomer.thing):
                continue
            if other.name == newcomer.name:
                _refuse_inherited(newcomer.thing)
                raise ConfigError(
                    f"the name {other.name!r} is taken ({other.source}); rename one, or leave one out"
                )
            for key in self._unique:
                value = getattr(newcomer.thing, key)
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


def takes_nothing(function: Any) -> bool:
    """Whether a function can be called without an argument, and not with one."""
    try:
        signature = inspect.signature(function)
        signature.bind()
    except (ValueError, TypeError):
        return False
    try:
        signature.bind(None)
    except TypeError:
        return True
    return False


def function_of(what: str, or_nothing: bool = False) -> Check:
    """The check of a function that is called with one argument.

    Args:
        what: that argument, in words.
        or_nothing: whether it may take no argument instead.
    """

    alone = " or nothing" if or_nothing else " alone"

    def check(thing: Any) -> None:
        if not callable(thing):
            raise ConfigError(f"{_words(thing)} is no function of {what}; name one that is")
        try:
            signature = inspect.signature(thing)
        except (ValueError, TypeError):  # some functions written in C have none to look at
            return
        if or_nothing and takes_nothing(thing):
            return
        try:
            signature.bind(None)
        except TypeError:
            raise ConfigError(f"{_words(thing)} takes {signature}; it must take {what}{alone}") from None

    return check


def describe(thing: Any) -> str:
    """The first line of a thing's docstring."""
    return next(iter((inspect.getdoc(thing) or "").splitlines()), "")


def names_code(text: str) -> bool:
    """Whether a text is of the form package.module:Name."""
    return ":" in text and all(part.isidentifier() for part in text.replace(":", ".", 1).split("."))


def short_name(name: str) -> str:
    """A name that can be part of a folder's: itself, or what follows the colon of package.module:Name."""
    return name.rpartition(":")[2]


def _own_name(key: str, thing: Any, short: bool) -> str:
    """The name a class gives itself; a function has the one by which it is known."""
    own: str = getattr(thing, "name", key)
    if short:
        _check_name(key)
        if own != key:
            raise ConfigError(f"it calls itself {own!r}; give both one name")
    return own


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
