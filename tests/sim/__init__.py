"""Scenarios, their tools, and simulation compared with closed forms and machines."""
