"""The registry: names in and out, where they come from, what is refused and in what words."""

import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedcom import cli
from fedcom.algorithms import ALGORITHMS, FedAvg, FedCOM
from fedcom.codecs import CODECS, OTHERS_IDS, Codec, Int
from fedcom.config import Config, read
from fedcom.config.methods import variant
from fedcom.data import DATASETS, PARTITIONS, Request, SplitRequest, load
from fedcom.errors import ConfigError, DataError
from fedcom.registry import Broken, Entry, Registry, describe, function_of, short_name
from fedcom.runs.prepare import build_task
from fedcom.studies.compare import compare
from fedcom.tasks.models import MODELS
from tests.plugins import CODEC, DATA, METHOD, MODEL, PARTS, offer

ALL: tuple[Registry[Any], ...] = (ALGORITHMS, CODECS, DATASETS, PARTITIONS, MODELS)
NAMES = st.from_regex(r"[a-z][a-z0-9-]{0,8}", fullmatch=True)


def first(x: object) -> object:
    """The first."""
    return x


def second(x: object) -> object:
    return x


def things(**builtin: Callable[[Any], object]) -> Registry[Callable[[Any], object]]:
    return Registry("thing", "fedcom.no-such-group", builtin or {"first": first}, function_of("an x"))


def forget(registry: Registry[Any]) -> None:
    """Make a registry know fedcom's own alone."""
    registry._known = {name: entry for name, entry in registry._known.items() if entry.source == "fedcom"}


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder where packages are installed; registries and modules are put back when the test is over."""
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    for registry in ALL:
        monkeypatch.setattr(registry, "_known", registry._known)
        forget(registry)
        registry.__dict__.pop("_offers", None)
    yield folder
    for registry in ALL:
        registry.__dict__.pop("_offers", None)
    for name, module in list(sys.modules.items()):
        if str(tmp_path) in str(getattr(module, "__file__", None)):
            del sys.modules[name]


@pytest.fixture
def here(site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, not on sys.path, as under the console script."""
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    assert not {"", str(folder)} & set(sys.path)
    return folder


def refused(call: Callable[[], object]) -> str:
    with pytest.raises(ConfigError) as caught:
        call()
    assert "\n" not in str(caught.value)
    return str(caught.value)


# A mapping of names


@given(st.lists(NAMES, unique=True))
def test_what_was_added_is_found_in_order_and_nothing_else(names: list[str]) -> None:
    registry = things(**{"a-first": first})
    added = [name for name in names if name != "a-first"]
    for name in added:
        registry.add(lambda x: x, name=name)
    assert list(registry) == registry.names() == ["a-first", *added]
    assert len(registry) == len(added) + 1
    assert dict(registry.items()) == {name: registry[name] for name in registry}
    assert all(name in registry and registry.get(name) is registry.find(name) for name in registry)
    assert [registry.where(name) for name in registry] == ["fedcom", *["added by hand"] * len(added)]
    for name in added:
        del registry[name]
    assert list(registry) == ["a-first"]


@given(
    st.one_of(st.text().filter(lambda text: ":" not in text), st.integers(), st.none(), st.lists(st.text()))
)
def test_what_was_not_added_is_refused_by_name(name: object) -> None:
    registry = things(**{"a-thing": first})
    if name != "a-thing":
        assert name not in registry
        with pytest.raises(ConfigError) as caught:
            registry.find(name)
        assert f"unknown thing {name!r}; " in str(caught.value)


def test_a_wrong_name_suggests_the_nearest() -> None:
    assert refused(lambda: CODECS["topp"]) == "unknown codec 'topp'; did you mean 'topk'?"
    assert refused(lambda: ALGORITHMS.find("fedavgg", "method")).startswith(
        "unknown method 'fedavgg'; did you"
    )
    assert CODECS.get("topp") is None
    assert CODECS.get("topp", Int) is Int


def test_adding_as_a_call_a_decorator_and_an_item() -> None:
    registry = things()
    assert registry.add(second, name="second") is second
    registry["third"] = lambda x: x

    @registry.add(name="fourth")
    def decorated(x: object) -> object:
        return x

    assert list(registry) == ["first", "second", "third", "fourth"]
    assert registry["fourth"] is decorated
    assert registry.name_of(second) == "second"
    assert "a thing needs a name" in refused(lambda: registry.add(lambda x: x))


def test_only_what_was_added_can_be_removed() -> None:
    assert "was not added by hand" in refused(lambda: things().__delitem__("first"))


def test_the_same_twice_is_no_clash_and_another_is() -> None:
    registry = things()
    for _ in range(2):
        registry.add(second, name="second")
    message = refused(lambda: registry.add(lambda x: x, name="second"))
    assert message == (
        "thing 'second' (added by hand) cannot be used: the name 'second' is taken (added by hand); "
        "rename one, or leave one out"
    )
    assert "the name 'first' is taken (fedcom)" in refused(lambda: registry.add(second, name="first"))
    assert "the name 'first' is taken (fedcom)" in refused(lambda: registry.__setitem__("first", second))
    assert registry["first"] is first


@given(st.text().filter(lambda text: not all(c.isalnum() or c in "_.-" for c in text) or text == ""))
def test_a_name_is_fit_for_a_folder(name: str) -> None:
    registry = things()
    with pytest.raises(ConfigError, match="a name is made of letters"):
        registry.add(second, name=name)
    assert list(registry) == ["first"]


def test_a_cell_run_twice_replaces_its_class() -> None:
    registry = things()
    cell = "def mine(x): return x"
    for _ in range(2):
        space: dict[str, Any] = {"__name__": "notebook"}
        exec(cell, space)
        registry.add(space["mine"], name="mine")
    assert registry["mine"] is space["mine"]


def test_a_function_takes_one_argument() -> None:
    assert "must take an x alone" in refused(lambda: things().add(lambda: 0, name="none"))
    assert "must take an x alone" in refused(lambda: things().add(lambda x, y: 0, name="two"))
    assert "int 5 is no function of an x" in refused(lambda: things().add(5, name="five"))
    things().add(lambda x, y=1: x, name="fine")


def test_short_names_and_descriptions() -> None:
    assert [short_name(name) for name in ("int", "mine:Fast", "a.b:C.d")] == ["int", "Fast", "C.d"]
    assert (describe(first), describe(second)) == ("The first.", "")


def test_the_five_have_their_words() -> None:
    told = {registry.title: (registry.kind, registry.group) for registry in ALL}
    assert told == {
        "algorithms": ("algorithm", "fedcom.algorithms"),
        "codecs": ("codec", "fedcom.codecs"),
        "datasets": ("data set", "fedcom.datasets"),
        "partitions": ("partition", "fedcom.partitions"),
        "models": ("model", "fedcom.models"),
    }


# Codecs


def test_ids_of_fedcoms_own_are_below_the_range_of_others() -> None:
    assert max(codec.id for codec in CODECS.values()) < OTHERS_IDS[0]
    assert OTHERS_IDS[-1] == 255


def test_an_id_is_a_free_byte_of_others(site: Path) -> None:
    def codec(number: object, called: str = "mine") -> type[Codec]:
        @dataclass(frozen=True)
        class Mine(Int):
            name: ClassVar[str] = called
            id: ClassVar[int] = number  # type: ignore[assignment]

        return Mine

    for number in (1, 127, 256, -1, "200", 200.0, None, True):
        words = f"its id is {number!r}; below 128 they are fedcom's own: choose one from 128 to 255"
        assert words in refused(lambda number=number: CODECS.add(codec(number)))  # type: ignore[misc]
    for number in (128, 255):
        CODECS.add(codec(number, f"mine-{number}"))
    message = refused(lambda: CODECS.add(codec(255, "other")))
    assert message == (
        "codec 'other' (added by hand) cannot be used: its id 255 is that of 'mine-255' (added by hand); "
        "change one"
    )


def test_a_class_goes_by_its_own_name(site: Path) -> None:
    @dataclass(frozen=True, kw_only=True)
    class Mine(FedAvg):
        name: ClassVar[str] = "mine"

    assert "it calls itself 'mine'" in refused(lambda: ALGORITHMS.add(Mine, name="other"))
    assert ALGORITHMS.add(Mine) is Mine
    ALGORITHMS["mine"] = Mine
    assert ALGORITHMS.name_of(Mine) == "mine"


# package.module:Name, from the current folder


def config(*overrides: str) -> Config:
    return Config.of(read(None, overrides))


def test_all_five_by_module_from_the_current_folder(here: Path) -> None:
    (here / "mine.py").write_text(PARTS)
    path = list(sys.path)
    made = config(
        "algorithm.name=mine:Fast", "algorithm.boost=3", "uplink.name=mine:Half", "downlink.name=mine:Half",
        "model.name=mine:Tiny", "data.name=mine:clouds", "data.partition=mine:stripes", "data.clients=3",
    )  # fmt: skip
    assert sys.path == path
    assert (made.algorithm.name, made.links.uplink.name, made.model.name) == ("fast", "half", "tiny")
    task, filled = build_task(made)
    assert task.sizes.tolist() == [20, 20, 20]
    table = filled.table()
    assert [table[s]["name"] for s in ("algorithm", "uplink", "downlink", "model", "data")] == [
        "mine:Fast", "mine:Half", "mine:Half", "mine:Tiny", "mine:clouds",
    ]  # fmt: skip
    assert table["data"]["partition"] == "mine:stripes"
    assert Config.of(table) == filled
    assert CODECS.where("mine:Half") == "module mine:Half"
    assert list(CODECS) == [name for name in CODECS if name != "half"]  # by its module alone


def test_a_built_in_may_be_named_by_its_module(here: Path) -> None:
    assert CODECS["fedcom.codecs:Int"] is Int
    assert CODECS.where("fedcom.codecs:Int") == "fedcom"
    assert config("uplink.name=fedcom:Int", "uplink.bits=4").table()["uplink"]["name"] == "int"


def test_what_is_imported_again_is_the_same(here: Path) -> None:
    (here / "mine.py").write_text(CODEC + "\nAlias = Half\nclass Box:\n    Inner = Half\n")
    assert CODECS["mine:Half"] is CODECS["mine:Alias"] is CODECS["mine:Box.Inner"]
    assert CODECS.name_of(CODECS["mine:Half"]) == "mine:Half"
    CODECS.add(CODECS["mine:Half"])
    assert CODECS["half"] is CODECS["mine:Half"]


CLASS = "from dataclasses import dataclass\nfrom fedcom import *\n"
WRONG = [
    ("nosuch:Half", "", "there is no module nosuch, neither in the current folder nor installed"),
    ("nosuch.deep:Half", "", "there is no module nosuch, "),
    ("mine.py:Half", CODEC, "there is no module mine.py, "),
    ("mine.deep:Half", CODEC, "there is no module mine.deep, "),
    ("./mine.py:Half", CODEC, "'./mine.py:Half' is not of the form package.module:Name, such as mine:Fast"),
    ("mine:", CODEC, "'mine:' is not of the form package.module:Name"),
    (":Half", CODEC, "':Half' is not of the form package.module:Name"),
    ("mine:Half:x", CODEC, "'mine:Half:x' is not of the form package.module:Name"),
    ("mine:Half", "\n1 / 0", "importing mine raises ZeroDivisionError: division by zero ("),
    ("mine:Half", "\n1 / 0", "mine.py, line 2); mend it there"),
    ("mine:Half", "class:", "importing mine raises SyntaxError: "),
    ("mine:Half", "raise SystemExit('bye')", "importing mine raises SystemExit: bye ("),
    ("mine:Half", "import nosuch", "importing mine raises ModuleNotFoundError: No module named 'nosuch' ("),
    ("mine:half", CODEC, "module mine has no half; did you mean 'Half'?"),
    ("mine:Zzz", CODEC, "module mine has no Zzz; known: Half"),
    ("mine:Half.x", CODEC, "module mine has no Half.x; "),
    ("mine:Half", "x = 5", "module mine has no Half; nothing in it is a codec"),
    ("mine:x", "x = 5", "int 5 is no class derived from Codec; name one that is"),
    ("mine:f", "def f(): pass", "function f is no class derived from Codec"),
    ("mine:Fast", METHOD, "class Fast is no class derived from Codec"),
    ("mine:A", CLASS + "class A(Codec): pass", "class A is abstract; it lacks compress, expand, fields, "),
    ("mine:Codec", CLASS, "class Codec is abstract"),
    ("mine:A", CLASS + "class A(Int): pass", "class A is no dataclass; decorate it: @dataclass(frozen=True)"),
    ("mine:Half", CODEC.replace("    id: ClassVar[int] = 130\n", ""), "its id is None; below 128 they are"),
    ("mine:Half", CODEC.replace('    name: ClassVar[str] = "half"\n', ""), "class Half has no name; add "),
    ("mine:Half", CODEC.replace('"half"', '"a/b"'), "a name is made of letters, digits, dots and dashes"),
    ("mine:Half", CODEC.replace('"half"', '"mine:Half"'), "a name is made of letters"),
    ("mine:Half", CODEC.replace('"half"', '"int"'), "the name 'int' is taken (fedcom)"),
    ("mine:Half", CODEC.replace("unbiased =", "rate: float\n    unbiased ="), "field rate of Half has no de"),
    ("fedcom.codecs:Codec", "", "class Codec is abstract"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "code", "message"), WRONG)
def test_what_cannot_be_named_by_its_module_is_told_why(
    here: Path, name: str, code: str, message: str
) -> None:
    (here / "mine.py").write_text(code)
    told = refused(lambda: config(f"uplink.name={name}"))
    assert told.startswith(f"codec {name!r} cannot be used: ")
    assert message in told


def test_others_than_codecs_are_told_too(here: Path) -> None:
    (here / "mine.py").write_text(PARTS + "\ndef two(a, b): pass\nfour = 4\n")
    assert "class Half is no class derived from Algorithm" in refused(lambda: ALGORITHMS["mine:Half"])
    assert "class Half is no class derived from Model" in refused(lambda: MODELS["mine:Half"])
    assert "must take a fedcom.Request or nothing" in refused(lambda: DATASETS["mine:two"])
    assert "int 4 is no function of a fedcom.data.SplitRequest" in refused(lambda: PARTITIONS["mine:four"])
    assert refused(lambda: ALGORITHMS["mine:fast"]).endswith("did you mean 'Fast'?")


def test_two_modules_with_one_codec_id_are_refused(here: Path) -> None:
    (here / "one.py").write_text(CODEC)
    (here / "two.py").write_text(CODEC.replace('"half"', '"other"'))
    told = refused(lambda: config("uplink.name=one:Half", "downlink.name=two:Half"))
    assert "codec 'two:Half' cannot be used: its id 130 is that of 'half' (module one:Half)" in told


def test_a_data_set_must_be_one(here: Path) -> None:
    (here / "mine.py").write_text("def wrong(request): return [1, 2]\n")
    with pytest.raises(DataError, match=r"'mine:wrong' \(module mine:wrong\) gave a list; its function must"):
        load("mine:wrong")


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("return 5", "per client; got 5"),
        ("return [[[0, 1]]]", r"per client; got \[\[\[0, 1\]\]\]"),
        ("return [request.y.float()]", "must return the indices of each client's samples"),
        ("return [request.y + len(request.y)]", "must return indices from 0 to 59; got 60 to 61"),
    ],
)
def test_a_partition_must_give_indices(here: Path, body: str, message: str) -> None:
    (here / "mine.py").write_text(DATA + f"\ndef wrong(request):\n    {body}\n")
    with pytest.raises(ConfigError, match=message):
        build_task(config("data.name=mine:clouds", "data.partition=mine:wrong", "data.clients=3"))


def test_loaders_are_told_what_the_built_in_ones_are(here: Path, site: Path) -> None:
    seen: list[Request | SplitRequest] = []
    DATASETS.add(lambda request: seen.append(request) or load("synthetic", clients=3), name="noting")  # type: ignore[func-returns-value]
    load("noting", "root", clients=4, alpha=1.0, beta=2.0, seed=5)
    assert seen == [Request("root", 4, 1.0, 2.0, 5)]


def test_a_config_keeps_the_name_of_a_data_set_that_calls_itself_otherwise(here: Path) -> None:
    (here / "mine.py").write_text(DATA)
    DATASETS.add(DATASETS["mine:clouds"], name="clouds")
    assert build_task(config("data.name=clouds", "data.clients=3"))[1].data.name == "clouds"


def test_a_method_by_module_needs_a_label_in_a_comparison(here: Path) -> None:
    (here / "mine.py").write_text(METHOD)
    small = ("model.hidden=8", "run.rounds=1", "algorithm.tau=1")
    told = refused(lambda: compare(read(None, small), ["mine:Fast"], here / "a", device="cpu", quiet=True))
    assert told == (
        "'mine:Fast' cannot name a folder; give the method another label, as in "
        "methods.fast.name=mine:Fast and methods=['fast']"
    )
    for label in ("../up", "a/b", "a\\b", ".."):
        assert "cannot name a folder" in refused(
            lambda label=label: compare(read(None, small), [label], here / "a")  # type: ignore[misc]
        )
    table = read(None, [*small, "methods.fast.name=mine:Fast", "methods.fast.boost=1.5"])
    found = compare(table, ["fedavg", "fast"], here / "a", device="cpu", quiet=True)
    assert [row["method"] for row in found.table] == ["fedavg", "fast"]
    assert 'name = "mine:Fast"' in (here / "a" / "fast" / "seed-0" / "config.toml").read_text()
    assert variant(table, "mine:Fast").algorithm == ALGORITHMS["mine:Fast"](tau=1)  # as a sweep names it


# Packages


def test_a_package_is_not_imported_until_it_is_asked_for(site: Path) -> None:
    offer(site, "extras", PARTS, codecs="half = extras:Half", datasets="clouds = extras:clouds")
    assert "half" in CODECS.names()
    assert "did you mean 'half'?" in refused(lambda: CODECS["halff"])
    assert CODECS["int"] is Int
    assert "extras" not in sys.modules
    assert CODECS["half"].id == 130
    assert "extras" in sys.modules
    assert CODECS.where("half") == "package extras 1.2"
    assert list(CODECS)[-1] == "half"
    assert DATASETS.where("clouds") == "package extras 1.2"
    assert config("uplink.name=half").table()["uplink"]["name"] == "half"
    assert CODECS["extras:Half"] is CODECS["half"]


def test_a_package_that_also_adds_its_own_by_hand_is_no_clash(site: Path) -> None:
    offer(
        site, "extras", CODEC + "\nfrom fedcom import CODECS\nCODECS.add(Half)\n", codecs="half = extras:Half"
    )
    assert CODECS["half"].name == "half"
    assert CODECS.where("half") == "package extras 1.2"
    assert list(CODECS).count("half") == 1


BROKEN = [
    (
        "import nosuch_module",
        "half = extras:Half",
        "importing extras raises ModuleNotFoundError: No module named",
    ),
    ("", "half = elsewhere:Half", "there is no module elsewhere, "),
    (CODEC, "half = extras:Half.x", "module extras has no Half.x; "),
    (CODEC, "half = extras", "'extras' is not of the form package.module:Name"),
    (CODEC, "other = extras:Half", "it calls itself 'half'; give both one name"),
    (CODEC.replace("130", "13"), "half = extras:Half", "its id is 13; below 128 they are fedcom's own"),
    ("Half = 5", "half = extras:Half", "int 5 is no class derived from Codec"),
]


@pytest.mark.parametrize(("code", "line", "reason"), BROKEN)
def test_a_broken_package_is_named_and_disturbs_no_other(
    site: Path, code: str, line: str, reason: str
) -> None:
    offer(site, "extras", code, codecs=line)
    name = line.split(" = ")[0]
    assert config("uplink.name=int").links.uplink == Int()
    told = refused(lambda: CODECS[name])
    assert told.startswith(f"codec {name!r} (package extras 1.2) cannot be used: {reason}")
    assert name not in CODECS
    assert CODECS.entries()[-1] == Broken(name, "package extras 1.2", told)
    assert len(CODECS) == len(list(CODECS.items())) == len(CODECS.entries()) - 1
    assert "uplink int has no key 'bit'; did you mean" in refused(lambda: config("uplink.bit=4"))


def test_a_built_in_name_cannot_be_taken_by_a_package(site: Path) -> None:
    offer(site, "extras", CODEC.replace('"half"', '"int"'), codecs="int = extras:Half")
    assert CODECS["int"] is Int
    assert CODECS.where("int") == "fedcom"
    (broken,) = [entry for entry in CODECS.entries() if isinstance(entry, Broken)]
    assert (broken.name, broken.source) == ("int", "package extras 1.2")
    assert (
        "codec 'int' (package extras 1.2) cannot be used: the name 'int' is taken (fedcom)" in broken.reason
    )
    assert list(CODECS).count("int") == 1


def test_two_packages_with_one_name_or_one_id_are_refused(site: Path) -> None:
    offer(site, "one", CODEC, codecs="half = one:Half")
    offer(site, "two", CODEC, codecs="half = two:Half")
    for _ in range(2):
        told = refused(lambda: CODECS["half"])
        assert "package one 1.2" in told
        assert "package two 1.2" in told
        assert "the name 'half' is taken" in told
    assert CODECS.entries()[-1].source in (
        "package one 1.2 and package two 1.2",
        "package two 1.2 and package one 1.2",
    )
    offer(site, "three", CODEC.replace('"half"', '"third"'), codecs="third = three:Half")
    CODECS.__dict__.pop("_offers")
    assert "its id 130 is that of 'half' (package" in refused(lambda: CODECS["third"])


def test_two_names_for_one_class_of_two_packages_are_no_clash(site: Path) -> None:
    offer(site, "one", CODEC, codecs="half = one:Half")
    offer(site, "two", "", codecs="half = one:Half")
    assert CODECS["half"].id == 130


def test_one_of_a_module_or_added_by_hand_and_one_of_a_package_clash(site: Path, here: Path) -> None:
    offer(site, "extras", CODEC, codecs="half = extras:Half")
    (here / "mine.py").write_text(CODEC.replace("130", "131"))
    mine = CODECS["mine:Half"]
    assert mine.id == 131
    told = refused(lambda: CODECS["half"])
    assert told.startswith(
        "codec 'half' (package extras 1.2) cannot be used: the name 'half' is taken (module"
    )
    forget(CODECS)
    CODECS.add(mine)
    assert "is taken (added by hand)" in refused(lambda: CODECS["half"])


# On the command line


@pytest.fixture
def command(
    here: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Callable[..., Any]:
    """Runs `fedcom ...` in this process: the code it exits with, and what it prints."""
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)  # typer sets its own

    def call(*arguments: str) -> tuple[object, str, str]:
        monkeypatch.setattr(sys, "argv", ["fedcom", *arguments])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        out, err = capfd.readouterr()
        return ended.value.code, out, err

    return call


MINE = ("algorithm.name=mine:Fast", "uplink.name=mine:Half", "data.name=mine:clouds", "model.name=mine:Tiny",
        "data.partition=mine:stripes")  # fmt: skip


def test_a_run_by_module_is_kept_evaluated_and_repeated(command: Callable[..., Any], here: Path) -> None:
    (here / "mine.py").write_text(PARTS)
    code, out, err = command("run", *MINE, "data.clients=3", "run.rounds=2", "-q")
    assert (code, out, err) == (0, "results in runs/fast-clouds-001\n", "")
    first = here / "runs" / "fast-clouds-001"
    summary = json.loads((first / "summary.json").read_text())
    assert (summary["algorithm"], summary["status"]) == ("fast", "done")
    code, out, err = command("evaluate", str(first))
    assert (code, err) == (0, "")
    assert json.loads(out)["train_loss"] == summary["train_loss"]
    code, out, err = command("run", str(first / "config.toml"), "-q")
    assert (code, out, err) == (0, "results in runs/fast-clouds-002\n", "")
    second = here / "runs" / "fast-clouds-002"
    assert (second / "config.toml").read_text() == (first / "config.toml").read_text()
    assert json.loads((second / "summary.json").read_text())["train_loss"] == summary["train_loss"]


def test_a_name_that_does_not_resolve_is_one_line(command: Callable[..., Any], here: Path) -> None:
    (here / "mine.py").write_text("import nosuch\n")
    sections = ("algorithm", "uplink", "downlink", "model", "data")
    for key in (*(f"{section}.name" for section in sections), "data.partition"):
        code, out, err = command("run", f"{key}=mine:Thing", "-q")
        assert (code, out) == (2, "")
        assert "'mine:Thing' cannot be used: importing mine raises ModuleNotFoundError: No module" in err
        assert err.count("\n") == 1
    assert {path.name for path in here.iterdir()} <= {"mine.py", "__pycache__"}


def test_the_list_says_where_each_comes_from_and_what_is_broken(
    command: Callable[..., Any], site: Path
) -> None:
    offer(site, "extras", CODEC, codecs="half = extras:Half")
    offer(site, "shaky", "1 / 0", codecs="shaky = shaky:Shaky\nint = shaky:Int")
    code, out, err = command("list", "codecs", "--json")
    assert (code, err) == (0, "")
    told = json.loads(out)
    assert told["half"] == {"description": "Every coordinate as a float16.", "source": "package extras 1.2"}
    assert (told["int"]["source"], told["shaky"]["source"]) == ("fedcom", "package shaky 1.2")
    assert "importing shaky raises ZeroDivisionError" in told["shaky"]["error"]
    assert "error" in told["int (package shaky 1.2)"]
    out = command("list", "codecs")[1]
    (half,) = [line for line in out.splitlines() if line.startswith("half ")]
    assert half.split() == ["half", "Every", "coordinate", "as", "a", "float16.", "package", "extras", "1.2"]
    assert "importing shaky raises ZeroDivisionError" in " ".join(out.split())


def test_a_report_imports_nothing_that_a_config_names(command: Callable[..., Any], here: Path) -> None:
    (here / "mine.py").write_text(CODEC + "\nopen('imported', 'w').close()\n")
    command("run", "uplink.name=mine:Half", "model.hidden=4", "run.rounds=0", "-q", "--out", "a")
    assert (here / "imported").exists()
    (here / "imported").unlink()
    del sys.modules["mine"]
    forget(CODECS)
    assert command("report", "a")[0] == 0
    assert not (here / "imported").exists()
    assert "mine" not in sys.modules


def test_entries_of_classes_can_be_described(site: Path) -> None:
    offer(site, "extras", MODEL, models="tiny = extras:Tiny")
    entry = MODELS.entries()[-1]
    assert isinstance(entry, Entry)
    assert (entry.name, describe(entry.thing)) == ("tiny", "One layer of tanh.")
    assert FedCOM.name in ALGORITHMS
