"""Accuracy by client and by class agrees with the scores of the same model."""

import numpy as np
import pytest
import torch

from fedcom import Task


def test_details_agree_with_scores_and_with_the_test_set() -> None:
    torch.manual_seed(3)
    x, y = torch.randn(600, 5), torch.randint(0, 3, (600,))
    module = torch.nn.Linear(5, 4)  # one output more than there are classes: it is no class
    test = torch.randn(200, 5), torch.randint(0, 3, (200,))
    task = Task.from_arrays(module, x, y, *test, clients=20, partition="dirichlet")
    w = task.objective.start
    scores = task.evaluate(w, torch.full((20,), 1 / 20))
    found = task.details(w)
    assert np.mean(sorted(found.client_accuracy)[:2]) == pytest.approx(scores["worst_client_accuracy"])
    confusion = np.array(found.confusion)
    assert confusion.shape == (3, 3)
    assert np.trace(confusion) / 200 == pytest.approx(scores["test_accuracy"])
    taken_for = module(test[0]).argmax(-1)
    for true in range(3):
        for other in range(3):
            assert confusion[true, other] == int(((test[1] == true) & (taken_for == other)).sum())


def test_without_a_test_set_no_class_is_mixed_up() -> None:
    task = Task.from_arrays(torch.nn.Linear(2, 2), torch.randn(10, 2), torch.arange(10) % 2, clients=2)
    found = task.details(task.objective.start)
    assert len(found.client_accuracy) == 2
    assert found.confusion == [[0, 0], [0, 0]]
