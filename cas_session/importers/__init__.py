"""Conversations from other stores, and to and from JSON Lines.

    async with SessionStore("postgresql://...") as store:
        report = await import_sessions(SdkTables("sqlite:///chat.db"), store)

`import_sessions` says what an import promises.
"""

from cas_session.importers.export import ExportReport, export_sessions
from cas_session.importers.json_lines import JsonLines
from cas_session.importers.run import ImportReport, import_sessions
from cas_session.importers.sdk_tables import SdkTables
from cas_session.importers.source import Conversations, Rejected, Row, Source

__all__ = [
    "Conversations",
    "ExportReport",
    "ImportReport",
    "JsonLines",
    "Rejected",
    "Row",
    "SdkTables",
    "Source",
    "export_sessions",
    "import_sessions",
]
