"""What tests share: makers of cases, the harness that compares with eager, programs in processes of their own."""
