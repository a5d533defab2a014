"""Runs on text: how the model goes on with a text before and after, and how many tokens a round takes."""

from contextlib import suppress
from typing import Any

from fedcom.engines.simulation import Simulation
from fedcom.tasks.generate import generate

PROMPT, LENGTH, CHARACTERS = 8, 32, 160  # tokens of the prompt and of what follows; if they are characters


def samples_of(simulation: Simulation) -> dict[str, Any] | None:
    """The beginning of the first client's test text, and how the models go on; None if there is no text.

    That is also so if the text cannot be written out, as its tokenizer is not here, or if the module fails.
    """
    task = simulation.task
    text = task.test_x if len(task.test_x) else task.x
    if task.tokens is None or not len(text):
        return None
    by_token, first = task.tokens.tokenizer is not None, text[0].tolist()
    with suppress(Exception):  # whatever a module of the user's does: the run is done
        prompt = task.tokens.decode(first[: PROMPT if by_token else 3 * PROMPT])
        length, seen = LENGTH if by_token else CHARACTERS, len(first)
        before, after = (
            generate(module, task.tokens, prompt, length, context=seen)
            for module in (simulation.replaced().module(), simulation.module())
        )
        return {"prompt": prompt, "before": before, "after": after}
    return None


def tokens_per_round(simulation: Simulation) -> float | None:
    """About how many tokens the clients of a round are trained on; None if it is no text."""
    task, algorithm, cohort = simulation.task, simulation.algorithm, simulation.state.cohort
    if task.tokens is None:
        return None
    batch = float(task.sizes.double().mean()) if algorithm.batch == "full" else algorithm.batch
    return cohort.sampled * cohort.tau * batch * task.x.shape[-1]
