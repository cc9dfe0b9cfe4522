"""Loop programs: rules, passes, interpreter."""
