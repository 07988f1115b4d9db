"""Start one of the guest's programs by path: `python3 <folder> session|server|zygote|accessibility`."""

import importlib
import sys
from pathlib import Path

PROGRAMS = ("session", "server", "zygote", "accessibility")


def main() -> int:
    """Run the program named by the first argument and return its exit code."""
    folder = Path(__file__).resolve().parent
    if len(sys.argv) < 2 or sys.argv[1] not in PROGRAMS:
        sys.stderr.write(f"usage: python3 {folder} {'|'.join(PROGRAMS)}\n")
        return 2
    sys.path[0] = str(folder.parent)
    program = importlib.import_module(f"{folder.name}.{sys.argv.pop(1)}")
    return program.main()


if __name__ == "__main__":
    sys.exit(main())
