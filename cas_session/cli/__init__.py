"""The cas-session command."""
