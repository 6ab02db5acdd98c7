import hypothesis
import pytest
import torch

# Matrices here are tiny: threads would wait for each other, all the more when test processes run side by side.
torch.set_num_threads(1)

hypothesis.settings.register_profile("default", deadline=None, max_examples=40, derandomize=True)
hypothesis.settings.load_profile("default")


@pytest.fixture(params=["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"])
def device(request: pytest.FixtureRequest) -> torch.device:
    """Every device that the suite runs on: the CPU always, CUDA where it is present."""
    return torch.device(request.param)
