"""What was measured beside what the papers print: statistics, verdicts, and how they are shown."""
