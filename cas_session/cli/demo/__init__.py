"""`cas-session demo`: many processes, one conversation, a compaction in flight, and what became of it all."""
