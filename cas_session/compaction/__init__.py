"""Compaction: plan, cut, call a compactor with nothing held, judge, replace the prefix."""
