"""An experiment: tables as data, runs as folders, the records of finished runs, and data."""
