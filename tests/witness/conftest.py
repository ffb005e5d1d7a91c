import random

import pytest

from tests.conformance.conftest import database, driver, emptied_postgres, migrated_file, other, s
from tests.witness.stress import Figures

__all__ = ["database", "driver", "emptied_postgres", "figures", "migrated_file", "other", "s"]


@pytest.fixture
def figures() -> Figures:
    """Of a run with a seed of its own, which a failure shows."""
    figures = Figures(seed=random.SystemRandom().randrange(2**32))
    print("seed", figures.seed)
    return figures
