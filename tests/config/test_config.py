"""From text to a checked config and back; what is wrong is refused by value, rule and remedy."""

import re
import tomllib
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedcom.algorithms import ALGORITHMS, FedCOM, FedCOMGATE
from fedcom.codecs import CODECS, Identity, Int, TopK
from fedcom.config import Config, dumps, read
from fedcom.config.methods import alone
from fedcom.config.values import parse
from fedcom.errors import ConfigError
from fedcom.tasks.models import MODELS, Mlp


def config(*overrides: str) -> Config:
    return Config.of(read(None, overrides))


def test_with_nothing_given_it_is_the_papers_method() -> None:
    default = config()
    assert (default.algorithm, default.model) == (FedCOMGATE(), Mlp())
    assert (default.links.uplink, default.links.downlink) == (Int(bits=8), Identity())
    assert (default.links.uplink_memory, default.links.downlink_memory) == ("none", "none")  # nothing is lost


@pytest.mark.parametrize(
    ("override", "value"),
    [
        ("algorithm.eta=0.5", 0.5),
        ("algorithm.eta=2", 2),
        ("algorithm.eta=1e-3", 0.001),
        ("algorithm.eta=.05", 0.05),
        ("algorithm.eta=5.", 5.0),
        ("algorithm.eta=+3", 3),
        ("algorithm.eta=1_000", 1000),
        ("algorithm.eta=.5e-3", 0.0005),
        ("algorithm.eta=1E5", 100000.0),
        ("algorithm.tau=3", 3),
        ("algorithm.tau=3,4", (3, 4)),
        ("algorithm.tau=3,5,+2", (3, 5, 2)),
        ("algorithm.tau=3.,5e0,2", (3, 5, 2)),
        ("algorithm.tau=1e1", 10),
        ("run.rounds=1e2", 100),
        ("run.rounds=1_000", 1000),
        ("run.seed=1e18", 10**18),
        ("algorithm.batch=full", "full"),
        ("algorithm.batch=20", 20),
        ("algorithm.damping=auto", "auto"),
        ("algorithm.option=II", "II"),
        ("model.hidden=64,32", (64, 32)),
        ("model.hidden=64", (64,)),
        ("model.hidden=[64, 32]", (64, 32)),
        ("data.name=mnist", "mnist"),
        ('data.name="mnist"', "mnist"),
        ("data.root=/a/b=c,d e", "/a/b=c,d e"),
        ("data.root=", ""),
        ("data.root= ", " "),
        ('data.root="123"', "123"),
        ("data.root=007", "007"),
        ("data.root=2024-05-27", "2024-05-27"),
        ("data.root=2024-05-27,2024-05-28", "2024-05-27,2024-05-28"),
        ("data.root=1.2.3", "1.2.3"),
        ("run.encode=true", True),
        ("run.dtype=float64", "float64"),
    ],
)
def test_overrides_take_numbers_text_lists_and_booleans(override: str, value: object) -> None:
    section, key = override.split("=", 1)[0].split(".")
    got = getattr(getattr(config(override), section), key)
    assert (got, type(got)) == (value, type(value))


def spellings(number: float) -> list[str]:
    """Ways to write a number that mean the same."""
    plain = repr(number)
    signed = plain if plain.startswith("-") else f"+{plain}"
    short = plain.replace("0.", ".", 1) if re.match(r"-?0\.\d", plain) else plain
    return [plain, plain.upper(), signed, short, plain.removesuffix("0") if plain.endswith(".0") else plain]


finite = st.floats(allow_nan=False, allow_infinity=False)


@given(finite)
def test_a_number_is_the_same_however_it_is_written(number: float) -> None:
    for text in spellings(number):
        got = parse(text)
        assert (got, type(got)) == (number, float), text


@given(st.integers())
def test_a_whole_number_is_the_same_however_it_is_written(number: int) -> None:
    for text in (f"{number}", f"{number:+d}", f"{number:_d}"):
        got = parse(text)
        assert (got, type(got)) == (number, int), text


@given(st.lists(st.tuples(finite, st.integers(0, 4)), min_size=2))
def test_a_list_of_numbers_is_the_same_however_it_is_written(items: list[tuple[float, int]]) -> None:
    texts = [spellings(number)[which] for number, which in items]
    for text in (",".join(texts), ", ".join(texts), f"[{','.join(texts)}]"):
        assert parse(text) == [number for number, _ in items]


@given(st.text())
def test_any_text_is_a_value_or_itself(text: str) -> None:
    got = parse(text)
    assert got == text or not isinstance(got, str) or text.strip()[:1] in ("'", '"')


@given(st.integers(0, 10**15))
def test_a_float_without_a_fraction_is_a_whole_number_from_the_line_and_from_toml(rounds: int) -> None:
    for table in (read(None, [f"run.rounds={float(rounds)!r}"]), {"run": {"rounds": float(rounds)}}):
        got = Config.of(table).run.rounds
        assert (got, type(got)) == (rounds, int)


def test_overrides_come_after_the_file_and_the_last_one_wins(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text("[algorithm]\neta = 0.5\ntau = 3\n[data]\nname = 'größer'\n", "utf-8")
    table = read(tmp_path / "a.toml", ["algorithm.eta=1", "algorithm.eta=0.25", "methods.mine.uplink.bits=4"])
    assert table["algorithm"] == {"eta": 0.25, "tau": 3}
    assert table["data"] == {"name": "größer"}
    assert table["methods"] == {"mine": {"uplink": {"bits": 4}}}


def test_an_override_that_names_another_codec_or_optimiser_drops_what_the_file_says_of_the_former(
    tmp_path: Path,
) -> None:
    file = tmp_path / "a.toml"
    file.write_text(
        "uplink = {name='int', bits=4}\nlocal = {name='adamw', beta1=0.8}\n[server]\nrate = 0.1\n"
    )
    other = read(file, ["uplink.name=sign", "local.name=momentum", "local.clip=1", "server.name=adam"])
    assert other["uplink"] == {"name": "sign"}
    assert other["local"] == {"name": "momentum", "clip": 1}
    assert other["server"] == {"rate": 0.1, "name": "adam"}  # the file names none, so it may mean this one
    same = read(file, ["uplink.name=int", "local.beta2=0.9"])
    assert same["uplink"] == {"name": "int", "bits": 4}
    assert same["local"] == {"name": "adamw", "beta1": 0.8, "beta2": 0.9}


def test_a_file_is_read_without_the_keys_and_sections_that_unset_names(tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    path.write_text(
        '[data]\npath = "x.csv"\nclients = 7\n[uplink]\nbits = 4\n[network]\npreset = "lte"\n'
        '[algorithm]\nname = "mine"\neta = 0.3\n[methods.mine]\nname = "fedcom"\ntau = 3\neta = 0.7\n'
    )
    for order in (1, -1):  # the file is read without them, wherever they stand
        words = ["unset=data.path, network,methods.mine.tau", "data.path=y.csv", "unset=uplink.bits"][::order]
        assert (got := alone(str(path), words)).data == alone(str(path), ["data.path=y.csv"]).data
        assert (got.network, got.algorithm.tau, got.links.uplink) == (None, FedCOM().tau, Int())
    assert read(path, ["unset=methods"])["algorithm"] == {"name": "mine", "eta": 0.3}
    assert alone(str(path), ["unset=algorithm.eta"]).algorithm.eta == 0.7  # which the file says elsewhere
    table = read(path)
    for word, told in (
        (
            "unset=data.test",
            "takes data.test out of the config file, but .*c.toml has no data.test; leave it",
        ),
        ("unset=data.path.x", "c.toml has no data.path.x;"),
        ("unset=data.path,", "unset= names what to read a config file without"),
    ):
        with pytest.raises(ConfigError, match=told):
            read(path, [word])
    with pytest.raises(ConfigError, match="but there is no config file; leave it out"):
        alone(None, ["unset=data.path", "data.path=x.csv"])
    assert read(path) == table


def test_parameters_alone_refine_the_methods_own_codec() -> None:
    assert config("uplink.bits=4").links.uplink == Int(bits=4)
    assert config("algorithm.name=qsparse", "uplink.ratio=0.5").links.uplink == TopK(ratio=0.5, values="int")
    assert config("algorithm.name=qsparse", "uplink.name=topk").links.uplink == TopK(ratio=0.1, values="int")
    assert config("algorithm.name=fedavg", "uplink.name=int").links.uplink == Int()
    assert config("downlink.name=topk", "downlink.memory=none").links.downlink_memory == "none"


REFUSED = [
    # unknown names: the nearest, or all
    ("algorithm.name=fedcomgat", "unknown algorithm 'fedcomgat'; did you mean 'fedcomgate'?"),
    ("algorithm.name=zzz", "known: diana, diloco, econtrol, fedadagrad, "),
    ("algorithm.name=1,2", "unknown algorithm [1, 2]"),
    ("uplink.name=topp", "unknown codec 'topp'; did you mean 'topk'?"),
    ("downlink.name=natrual", "unknown codec 'natrual'; did you mean 'natural'?"),
    ("model.name=mpl", "unknown model 'mpl'; did you mean 'mlp'?"),
    ("algoritm.eta=1", "unknown section 'algoritm'; did you mean 'algorithm'?"),
    ("algorithm.etta=1", "algorithm fedcomgate has no key 'etta'; did you mean 'eta'?"),
    ("algorithm.nmae=fedavg", "algorithm fedcomgate has no key 'nmae'; did you mean 'name'?"),
    ("data.client=3", "data has no key 'client'; did you mean 'clients'?"),
    ("run.round=3", "run has no key 'round'; did you mean 'rounds'?"),
    ("uplink.bit=3", "uplink int has no key 'bit'; did you mean 'bits'?"),
    ("run.x=3", "run has no key 'x'; known: best, checkpoint_minutes, checkpoint_rounds, chunk, dtype, "),
    # keys of others
    ("algorithm.name=fedavg algorithm.damping=1", "fedavg has no key 'damping'; it is a key of fedcomgate"),
    ("algorithm.shift_rate=1", "fedcomgate has no key 'shift_rate'; it is a key of diana, vr-diana"),
    ("uplink.ratio=0.1", "uplink int has no key 'ratio'; it is a key of topk, randk"),
    ("model.name=logistic model.hidden=64", "model logistic has no key 'hidden'; it is a key of mlp"),
    # types
    ("algorithm.eta=fast", "algorithm.eta must be a number or 'auto'; got 'fast'"),
    ("algorithm.eta=true", "algorithm.eta must be a number or 'auto'; got True"),
    ("algorithm.eta=", "algorithm.eta must be a number or 'auto'; got ''"),
    ("algorithm.eta.x=1", "algorithm.eta must be a number or 'auto'; got {'x': 1}"),
    ("algorithm.tau=2.5", "algorithm.tau must be a whole number or whole numbers, such as 200,200; got 2.5"),
    ("algorithm.batch=half", "algorithm.batch must be a whole number or 'full'; got 'half'"),
    ("uplink.memory=some", "must be 'none' or 'error-feedback' or 'decayed-feedback' or 'paper'; got 'some'"),
    ("model.hidden=a,b", "model.hidden must be whole numbers, such as 200,200; got 'a,b'"),
    ("model.hidden=1.5,2", "model.hidden must be whole numbers"),
    ("data.name=5", "data.name must be text; got 5; write data.name='\"5\"' for that text"),
    ("data.name=true", "data.name must be text; got True"),
    ("run.rounds=2.5", "run.rounds must be a whole number; got 2.5"),
    ("run.rounds=inf", "run.rounds must be a whole number; got inf"),
    ("run.rounds=nan", "run.rounds must be a whole number; got nan"),
    ("run.rounds=1e999", "run.rounds must be a whole number; got inf"),
    ("run.encode=1", "run.encode must be true or false; got 1"),
    ("algorithm.tau=3.5,5", "algorithm.tau must be a whole number or whole numbers"),
    ("algorithm.tau=true,5", "algorithm.tau must be a whole number or whole numbers"),
    ("algorithm.eta=1__0", "algorithm.eta must be a number or 'auto'; got '1__0'"),
    (f"algorithm.eta=1{400 * '0'}", "algorithm.eta must be a number or 'auto'; got 1000"),
    ("algorithm.eta=[]", "algorithm.eta must be a number or 'auto'; got []"),
    ("run.rounds=true", "run.rounds must be a whole number; got True"),
    ("run.encode=yes", "run.encode must be true or false; got 'yes'"),
    ("run.dtype=float16", "run.dtype must be 'float32' or 'float64'; got 'float16'"),
    ("downlink.memory=no", "downlink.memory must be 'none' or 'error-feedback'; got 'no'"),
    # ranges
    ("algorithm.eta=0", "algorithm: eta must be above 0; got 0"),
    ("algorithm.eta=nan", "eta must be a number or 'auto'; got nan"),
    ("algorithm.gamma=-1", "gamma must be above 0; got -1"),
    ("algorithm.tau=0", "tau must be 1 or more; got 0"),
    ("algorithm.tau=1,0", "tau must be 1 or more; got (1, 0)"),
    ("algorithm.epochs=0", "epochs must be 1 or more; got 0"),
    ("algorithm.decay=2", "decay must be in (0, 1]; got 2"),
    ("algorithm.damping=0", 'damping must be "auto" or in (0, 1]; got 0'),
    ("algorithm.name=diana algorithm.tau=5", "diana fixes tau at 1; got 5"),
    ("algorithm.name=local-sgd algorithm.gamma=2", "local-sgd fixes gamma at 1.0; got 2"),
    ("uplink.bits=0", "uplink: bits must be between 1 and 16; got 0"),
    ("uplink.name=topk uplink.ratio=0", "uplink: ratio must be above 0 and at most 1; got 0"),
    ("model.hidden=0", "hidden needs one positive width per layer, such as 200,200; got (0,)"),
    ("data.clients=0", "data: clients must be 1 or more; got 0"),
    ("run.rounds=-1", "run: rounds must be 0 or more; got -1"),
    ("run.eval_every=0", "run: eval_every must be 1 or more; got 0"),
    ("run.chunk=0", "run: chunk must be 1 or more; got 0"),
    ("run.seed=-1", "run: seed must be 0 or more; got -1"),
    ("run.seed=99999999999999999999", "run: seed must be below 2^62; got 99999999999999999999"),
    ("run.target_accuracy=95", "run: target_accuracy is a share, such as 0.9; got 95"),
    # overrides that are none
    ("eta=0.05", "'eta=0.05' is not an override; write section.key=value, as in algorithm.eta=0.05"),
    ("algorithm.eta", "'algorithm.eta' is not an override"),
    ("algorithm=fedavg", "'algorithm=fedavg' is not an override"),
    (".eta=1", "'.eta=1' is not an override"),
    ("run.seed=1 run.seed.x.y=2", "'run.seed.x.y=2' sets a key of seed, but seed is 1, not a section"),
]


@pytest.mark.parametrize(("overrides", "message"), REFUSED, ids=[case[0] for case in REFUSED])
def test_what_is_wrong_is_refused_by_value_and_rule(overrides: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        config(*overrides.split())
    assert message in str(caught.value)
    assert caught.value.exit_code == 2


def test_a_file_that_is_missing_not_text_or_not_toml(tmp_path: Path) -> None:
    (tmp_path / "bad.toml").write_text("[algorithm\n")
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe\x00")
    for name, message in {
        "none.toml": "no config file ",
        "bad.toml": "bad.toml is not TOML: ",
        "bytes.toml": "bytes.toml is not TOML: ",
        ".": "cannot read ",
    }.items():
        with pytest.raises(ConfigError, match=message):
            read(tmp_path / name)


def test_a_section_that_is_a_value(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text("algorithm = 'fedavg'\n")
    with pytest.raises(ConfigError, match=r"algorithm is a section; write algorithm\.key=value, not"):
        Config.of(read(tmp_path / "a.toml"))
    with pytest.raises(ConfigError, match="but algorithm is 'fedavg', not a section"):
        read(tmp_path / "a.toml", ["algorithm.eta=1"])


def back(made: Config) -> Config:
    return Config.of(tomllib.loads(dumps(made.table())))


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_method_survives_being_written(name: str) -> None:
    made = config(f"algorithm.name={name}", "algorithm.eta=1e-05", "run.target_accuracy=0.123456789012345")
    assert back(made) == made
    assert {f.name for f in fields(made.algorithm)} >= set(made.table()["algorithm"]) - {"name"}


@pytest.mark.parametrize("name", CODECS)
def test_every_codec_survives_being_written(name: str) -> None:
    made = config(f"uplink.name={name}", f"downlink.name={name}", "downlink.memory=none")
    assert back(made) == made


@pytest.mark.parametrize("name", MODELS)
def test_every_model_survives_being_written(name: str) -> None:
    assert back(config(f"model.name={name}")) == config(f"model.name={name}")


def test_lists_options_and_booleans_survive_being_written() -> None:
    made = config(
        "algorithm.tau=3,4",
        "algorithm.batch=full",
        "algorithm.option=II",
        "algorithm.damping=0.5",
        "run.encode=true",
        "run.init=a b.safetensors",
        "run.chunk=2",
        "model.hidden=7",
        "data.clients=2",
    )
    assert back(made) == made


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x7f")))
def test_any_text_survives_being_written(text: str) -> None:
    table: dict[str, Any] = {"run": {"init": text}}
    assert tomllib.loads(dumps(table)) == table
