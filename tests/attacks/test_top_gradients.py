"""The collaborator of cascade training reads embeddings off the gradient of the top, as the page on protection says."""

from tests.attacks.top_gradients import asked, honest, reads, shares


def test_an_honest_collaborator_reads_whole_small_batches():
    found = honest(6, 4)
    assert found.success > 0.7
    assert found.verdict == "leak"


def test_a_lying_collaborator_reads_embeddings_and_labels_of_large_batches_and_knows_which_are_right():
    found, right = shares(reads(32, 32)[8:])
    assert found > 0.4  # exp(-32 / 64) of the records are alone between the thresholds, if these are quantiles
    assert right > 0.97
    audited = asked(32, 24)  # the same, asked for after a training with honest tops
    assert abs(audited.success - found) < 0.1
    assert audited.verdict == "leak"
