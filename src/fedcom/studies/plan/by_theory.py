"""Plans from constants instead of a task: the theorems decide, whose bounds are far above what happens."""

from dataclasses import replace

from fedcom.codecs import CODECS, Codec
from fedcom.config import Table
from fedcom.draws import Draw
from fedcom.errors import ConfigError
from fedcom.plain import pick
from fedcom.studies.plan.prediction import Prediction, codec_words
from fedcom.theory import Constants, theorem
from fedcom.theory.theorems import Regime
from fedcom.traffic.network import Network
from fedcom.vectors import Layout

CODECS_TRIED: tuple[Table, ...] = (
    {"name": "identity"},
    {"name": "int", "bits": 8},
    {"name": "rotated", "bits": 4},
    {"name": "rotated", "bits": 1},
    {"name": "rotated", "bits": 0.25},
)


def by_theory(
    constants: Constants,
    epsilon: float,
    dim: int,
    *,
    alike: bool = False,
    network: Network | None = None,
) -> list[Prediction]:
    """What the theorems say: rounds, local steps and bytes to an error of epsilon, for each of some codecs.

    A codec is taken at the q it promises.

    Args:
        dim: the number of parameters.
        alike: whether clients have the same distribution: FedCOM's theorems; else FedCOMGATE's.
    """
    regime: Regime = (
        "strongly convex" if constants.mu > 0 else "convex" if constants.norm > 0 else "nonconvex"
    )
    bound, layout, method = theorem(alike, regime), Layout.vector(dim), "fedcom" if alike else "fedcomgate"
    found = []
    for own in CODECS_TRIED:
        codec = pick(CODECS, own, "uplink")
        about = Prediction(f"{method} {codec_words(codec)}", method, codec_words(codec))
        c, size = replace(constants, q=codec.variance(layout)), _size(codec, layout)
        try:
            rounds, tau = bound.target(c, epsilon)
        except ConfigError as error:
            found.append(replace(about, how=str(error)))
            continue
        steps, seconds = bound.steps(c, tau, rounds), None
        if network is not None:
            transfer = 8e-6 * (4 * dim / network.downlink + size / network.uplink)
            seconds = rounds * (network.latency + transfer + tau * network.compute)
        found.append(
            replace(
                about,
                tau=tau,
                eta=steps.eta,
                gamma=steps.gamma,
                rounds=rounds,
                high=rounds,
                error=epsilon,
                up=rounds * size,
                down=4.0 * rounds * dim,
                seconds=seconds,
                how=f"{bound.name}, {regime}",
            )
        )
    return sorted(found, key=lambda p: p.cost("bytes"))


def _size(codec: Codec, layout: Layout) -> float:
    """The bytes of a message of normal numbers."""
    draw = Draw.seeded(0).fold("plan", 0)
    sizes = codec.transmit(draw.normal(layout.size).unsqueeze(0), layout, Draw(draw.key.unsqueeze(0)))[1]
    return float(sum(v if isinstance(v, int) else float(v.double().mean()) for v in sizes.values()))


def read_constants(text: str) -> Constants:
    """Constants as they are written on the command line: L=1,mu=0.05,sigma=1,m=100,gap=2."""
    values: dict[str, float] = {}
    for part in text.split(","):
        key, _, value = part.partition("=")
        try:
            values[key.strip()] = float(value)
        except ValueError:
            raise ConfigError(
                f"constants are written L=1,mu=0.05,sigma=1,m=100,gap=2; got {part!r}"
            ) from None
    known = list(Constants.__dataclass_fields__)
    for key in values:
        if key not in known:
            raise ConfigError(f"no constant {key!r}; known: {', '.join(known)}")
    if "L" not in values:
        raise ConfigError("constants need L, as in L=1,mu=0.05")
    return Constants(**{**values, "m": int(values.get("m", 1))})  # type: ignore[arg-type]
