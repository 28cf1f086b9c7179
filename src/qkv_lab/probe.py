"""A linear probe: how well a linear classifier reads a property of words from their vectors.

N words, C width, K classes
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

RIDGE = 0.1


def probe_accuracy(train: Tensor, train_labels: Sequence[str], test: Tensor, test_labels: Sequence[str]) -> float:
    """Fit a linear classifier on vectors (N, C) with labels, and return its accuracy on others.

    The classifier is a ridge regression of one-hot labels on standardised vectors, which has a closed form:
    W = (XᵀX + λN I)⁻¹ XᵀY.

    >>> x = torch.tensor([[1.0, 0.3], [0.9, -0.2], [-1.0, 0.1], [-1.1, 0.0]])
    >>> probe_accuracy(x, ["a", "a", "b", "b"], -x, ["b", "b", "a", "a"])
    1.0
    """
    classes = sorted(set(train_labels))
    targets = F.one_hot(torch.tensor([classes.index(label) for label in train_labels]), len(classes)).float()  # (N, K)
    mean, spread = train.mean(0), train.std(0) + 1e-6
    inputs, tests = (F.pad((x - mean) / spread, (0, 1), value=1.0) for x in (train, test))  # the last column is a bias
    ridge = RIDGE * len(inputs) * torch.eye(inputs.shape[1])
    weight = torch.linalg.solve(inputs.T @ inputs + ridge, inputs.T @ targets)  # (C + 1, K)
    found: list[int] = (tests @ weight).argmax(1).tolist()
    correct: list[bool] = [classes[index] == label for index, label in zip(found, test_labels, strict=True)]
    return sum(correct) / len(correct)
