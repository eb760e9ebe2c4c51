"""Scenarios, their tools, and what simulation says against the world."""
