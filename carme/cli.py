"""The `carme` command: finds its subcommands by entry point and prints errors for people."""

import sys
from importlib.metadata import EntryPoint, entry_points

import click

from carme import __version__
from carme.errors import CarmeError, MissingError


class CommandGroup(click.Group):
    """A group whose commands are the entry points `carme.commands`, each loaded when it is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*super().list_commands(ctx), *self._entries()})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        own = super().get_command(ctx, cmd_name)
        entry = self._entries().get(cmd_name)
        if own or not entry:
            return own
        try:
            command: click.Command = entry.load()
        except ModuleNotFoundError as error:
            extras = (e for p, e in _EXTRA_OF_PACKAGE.items() if entry.value.startswith(p))
            extra = next(extras, "")
            raise MissingError(
                f"carme {cmd_name} needs the Python package {error.name}",
                f"pip install 'carme[{extra}]'" if extra else "reinstall carme",
            ) from error
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List every command; a note replaces one whose package is not installed."""
        rows = []
        for name in self.list_commands(ctx):
            try:
                command = self.get_command(ctx, name)
            except CarmeError as error:
                rows.append((name, f"(not usable: {error.message})"))
            else:
                if command and not command.hidden:
                    rows.append((name, command.get_short_help_str(limit=70)))
        with formatter.section("Commands"):
            formatter.write_dl(rows)

    @staticmethod
    def _entries() -> dict[str, EntryPoint]:
        return {entry.name: entry for entry in entry_points(group="carme.commands")}


_EXTRA_OF_PACKAGE = {
    "carme_spawner": "spawner",
    "carme_monitoring": "monitoring",
    "carme_containers": "containers",
    "carme.predict": "simulator",
    "carme.local": "local",
    "carme.simulator": "simulator",
    "carme.library": "simulator",
    "carme.measurements": "simulator",
}


@click.group(cls=CommandGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="carme")
def carme() -> None:
    """An interactive machine-learning workplace on a Slurm GPU cluster."""


@carme.command()
def version() -> None:
    """Print the version."""
    click.echo(__version__)


def main() -> None:
    """Run the command line; an expected error is one line on stderr and exit code 1."""
    try:
        carme(standalone_mode=False)
    except CarmeError as error:
        click.secho("carme: ", fg="red", bold=True, nl=False, err=True)
        click.echo(error.message, err=True)
        if error.hint:
            click.echo(f"  → {error.hint}", err=True)
        sys.exit(1)
    except click.exceptions.Exit as done:
        sys.exit(done.exit_code)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        click.echo("stopped", err=True)
        sys.exit(130)
    except BrokenPipeError:
        # `carme nodes | head`: the pipe is closed; closing stderr suppresses Python's own message.
        sys.stderr.close()
        sys.exit(141)


if __name__ == "__main__":
    main()
