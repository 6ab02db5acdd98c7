import pytest
import torch


@pytest.fixture(params=["cpu", "cuda"])
def device(request):
    """The CPU always, CUDA where it is present."""
    if request.param == "cuda" and not torch.cuda.is_available():
        pytest.skip("needs CUDA")
    return torch.device(request.param)
