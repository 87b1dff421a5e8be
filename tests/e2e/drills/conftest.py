"""What the drills share with the conformance suite. Each drill starts the daemon that it needs."""
import pytest

from conformance.daemon import MODEL
from conformance.vocabulary import Vocabulary


@pytest.fixture(scope="session")
def vocabulary():
    return Vocabulary(MODEL)
