"""Bring the record of what the op cases reach up to date: ``python -m tests.reached --write``."""

from __future__ import annotations

import argparse

import torch

from tests.support.reach import RECORD, TORCH, all_cases, reached, read, registered, without_a_case, write


def main() -> None:
    """Trace cases, write the record, and name the overloads that no case reaches."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="trace what the record lacks")
    parser.add_argument("--again", action="store_true", help="trace all cases (minutes)")
    args = parser.parse_args()
    torch._functorch.config.enable_autograd_cache = False
    version, record = read() if RECORD.exists() else ("", {})
    known = {} if args.again or version != TORCH else record
    if args.write or args.again:
        record = {name: known.get(name) or reached(case) for name, case in all_cases().items()}
        write(record)
    for overload in without_a_case(registered(), record):
        print(f"no case reaches {overload}")


if __name__ == "__main__":
    main()
