"""The charter of a federation on one machine."""

import pytest

from lightning_vfl.errors import ConfigurationError
from lightning_vfl.federation.local import found


def test_parties_have_the_names_that_are_given(tmp_path):
    charter = found("local", ["bank", "telco"], tmp_path)
    assert [party.name for party in charter.parties] == ["bank", "telco"]
    assert (tmp_path / "keys/telco.key").exists()


@pytest.mark.parametrize(("name", "message"), [("server", "no party may be named 'server'"), ("my bank", "'my bank'")])
def test_other_names_are_refused(name, message, tmp_path):
    with pytest.raises(ConfigurationError, match=message):
        found("local", ["telco", name], tmp_path)
