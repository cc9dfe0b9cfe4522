"""Op cases, a folder a family: ``cases_<name>.py`` is a table of cases, which ``test_op_cases.py`` runs."""
