from tests.session.fixtures import client, endpoint, other, patched, store

__all__ = ["client", "endpoint", "other", "patched", "store"]
