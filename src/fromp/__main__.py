"""The command `fromp`, and `python -m fromp`: hands over to its commands, or says how to install what they need."""

import sys


def main() -> int:
    """Run the command line; the exit code is 2 if something it needs is not installed."""
    try:
        from fromp.lab.cli import main as run_command

        return run_command()
    except KeyboardInterrupt:  # while it was being imported
        return 130
    except ModuleNotFoundError as error:
        if (error.name or "fromp").partition(".")[0] == "fromp":
            raise
        from fromp.foundation.errors import install
        from fromp.learn import COMMANDS

        extra = "learn" if {*sys.argv[1:2]} & {*COMMANDS} else "lab"
        print(f"fromp: this command needs {error.name}, which is not installed; {install(extra)}.", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
