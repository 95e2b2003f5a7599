"""Measured beside published numbers: statistics, outcomes of claims, and their presentation."""
