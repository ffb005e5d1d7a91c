"""Stand-ins and checks for tests: the local model endpoint, doubles, the conformance suite."""
