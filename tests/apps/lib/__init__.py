"""Shared parts of the tests of real programs: processes, ports, counters, modes and the table of results."""
