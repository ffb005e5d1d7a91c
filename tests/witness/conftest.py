from tests.conformance.conftest import database, driver, emptied_postgres, migrated_file, other, s

__all__ = ["database", "driver", "emptied_postgres", "migrated_file", "other", "s"]
