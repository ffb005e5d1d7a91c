"""`cas-session demo`: many processes, one conversation, a compaction in flight, and a count of what was lost."""
