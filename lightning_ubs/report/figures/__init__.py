"""The figures of the report, one file per idea; each draws what the results hold and says what to run for the rest."""
