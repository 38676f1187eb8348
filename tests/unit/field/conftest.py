import pytest
import torch


@pytest.fixture(autouse=True, scope="package")
def one_thread():
    """Thousands of tiny products: on a busy machine the BLAS' threads wait for each other twelve times as long."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
