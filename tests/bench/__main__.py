"""All benchmarks: ``python -m tests.bench`` (``make bench``). Exit code 1 if a budget is exceeded."""

import sys

from tests.bench import aws, controllers, guest, lint, node

if __name__ == "__main__":
    failures = node.main()
    print()
    failures += controllers.main()
    print()
    failures += aws.main()
    print()
    failures += lint.main()
    print()
    sys.exit(failures + guest.main())
