import os
from collections.abc import Iterator

import hypothesis
import pytest
import torch

from tests import typed

typed.install()  # before the package is imported

# Matrices here are tiny: threads would wait for each other, all the more when test processes run side by side.
torch.set_num_threads(1)

hypothesis.settings.register_profile("default", deadline=None, max_examples=40, derandomize=True)
hypothesis.settings.register_profile(
    "pretend",
    hypothesis.settings.get_profile("default"),
    max_examples=5,
    phases=[hypothesis.Phase.explicit, hypothesis.Phase.generate],
)

PRETEND = "OHMFORMER_TEST_DEVICE"
"""Set to ``elsewhere``: only tests that take a device, on one that the machine does not have (``make test-devices``)."""
hypothesis.settings.load_profile("pretend" if PRETEND in os.environ else "default")
DEVICES = [os.environ[PRETEND]] if PRETEND in os.environ else ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]


@pytest.fixture(scope="session", params=DEVICES)
def device(request: pytest.FixtureRequest) -> Iterator[torch.device]:
    """Every device that the suite runs on: the CPU always, CUDA where it is present."""
    if request.param == "elsewhere":
        from tests.elsewhere import second_device

        with second_device() as pretended:
            yield pretended
    else:
        yield torch.device(request.param)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if PRETEND in os.environ:
        items[:] = [item for item in items if "device" in getattr(item, "fixturenames", ())]
