"""Conversation storage for agent servers that survives concurrent compaction."""
