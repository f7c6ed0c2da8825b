"""`python -m startrail ...`, and the script `startrail`, are the command."""
import os
import pathlib
import sys


def main() -> None:
    program = pathlib.Path(__file__).parent / "startrail"
    if not program.exists():
        sys.exit(f"startrail: this installation has no program at {program}")
    os.execv(program, ["startrail", *sys.argv[1:]])


if __name__ == "__main__":
    main()
