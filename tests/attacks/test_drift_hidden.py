"""A hidden layer does not protect the columns: the fitted run shows more than the uploads."""

import pytest

from tests.attacks.drift_hidden import attack, correlation, explained, train


@pytest.mark.slow
@pytest.mark.parametrize(("activation", "least"), [("tanh", 0.98), ("relu", 0.88)])
def test_three_epochs_give_the_inner_products_of_one_party(activation, least):
    training = train(activation)
    fit, shown = attack(training, activation), training.served.shown()
    assert correlation(fit.columns, training.columns) > least > correlation(shown, training.columns)
    assert explained(fit.columns, training.columns) > least > explained(shown, training.columns)
