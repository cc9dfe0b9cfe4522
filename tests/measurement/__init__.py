"""Times, intervals and facts of the machine."""
