"""The command line, the plan, the processes of cells, and the check of what is on record."""
