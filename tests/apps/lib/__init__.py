"""What the tests of real programs share: processes, ports, counters, modes and the table of results."""
