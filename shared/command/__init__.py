"""The command line: choosing and running cells, planning, and checking the records."""
