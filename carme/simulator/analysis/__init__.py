"""What is read from runs: timelines, limits of scaling, suites."""
