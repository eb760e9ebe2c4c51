"""Profiles of this machine: measurements by `netacc bench`, a fit, and files that scenarios name.

The command is `netacc calibrate`.
"""
