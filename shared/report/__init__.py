"""Measured beside printed numbers: statistics, outcomes of claims, and their presentation."""
