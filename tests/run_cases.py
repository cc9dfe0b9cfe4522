"""Run the op cases of one family from the command line: ``python -m tests.run_cases pointwise [-k text]``."""

from __future__ import annotations

import argparse
import time
import traceback

from tests.support.case_tables import case_tables
from tests.support.harness import check, prepare


def main() -> None:
    """Prepare, check and print one line per case."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("family")
    parser.add_argument("-k", default="", help="only cases with this text in their name")
    args = parser.parse_args()
    cases = [c for c in case_tables()[args.family] if args.k in c.name]
    start = time.time()
    failed = prepare(cases)
    print(f"compiled {len(cases)} cases in {time.time() - start:.0f} s")
    good = 0
    for case in cases:
        try:
            if id(case) in failed:
                raise AssertionError("not lowered: " + failed[id(case)].strip()[-1200:])
            check(case)
            good += 1
        except Exception as error:
            text = str(error) if isinstance(error, AssertionError) else traceback.format_exc(limit=-3)
            print(f"FAIL {case.name}: {text.strip()[:1500]}\n")
    print(f"{good} passed, {len(cases) - good} failed")


if __name__ == "__main__":
    main()
