"""The parts that make a history shorter."""
