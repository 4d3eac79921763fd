"""The scripts by which shells complete the command line."""

import json
import subprocess

import pytest

from arrowstate.cli import main
from arrowstate.cli.app import make_parser

COMPLETE = """
source "$1"
complete -p arrowstate
while IFS= read -r line; do
    read -ra COMP_WORDS <<< "$line"
    [[ $line == *" " ]] && COMP_WORDS+=("")
    COMP_CWORD=$((${#COMP_WORDS[@]} - 1)) COMP_LINE=$line COMP_POINT=${#line} COMPREPLY=()
    _shtab_arrowstate arrowstate "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}"
    echo "${COMPREPLY[*]}"
done
"""
"""Has bash complete each line that it reads, as Tab does."""


def script_of(shell, capsys):
    assert main(["completion", shell]) == 0
    return capsys.readouterr().out


def test_bash_completes_commands_options_their_values_and_files(tmp_path, capsys):
    (tmp_path / "complete.bash").write_text(script_of("bash", capsys))
    for name in ("query.sql", "quest.parquet"):
        (tmp_path / name).touch()
    (tmp_path / "quiet-store").mkdir()
    expected = {
        "arrowstate sh": {"show"},
        "arrowstate sql store --for": {"--format"},
        "arrowstate sql store --format m": {"markdown"},
        "arrowstate sql store --file que": {"query.sql", "quest.parquet"},
        "arrowstate export store counter.clicks -o que": {"query.sql", "quest.parquet"},
        "arrowstate list qu": {"quiet-store"},
        "arrowstate gc store --a": {"--apply", "--age", "--allow-short-grace"},
        "arrowstate flink im": {"import"},
        "arrowstate completion f": {"fish"},
    }

    done = subprocess.run(
        ["bash", "--norc", "-c", COMPLETE, "bash", "complete.bash"],
        cwd=tmp_path,
        input="\n".join(expected) + "\n",
        capture_output=True,
        text=True,
        check=True,
    )

    registered, *offered = done.stdout.splitlines()
    assert registered.endswith("arrowstate")
    assert {line: set(words.split()) for line, words in zip(expected, offered, strict=True)} == expected
    assert done.stderr == ""


@pytest.mark.parametrize(
    ("shell", "own"),
    [("bash", "-F _shtab_arrowstate arrowstate"), ("zsh", "#compdef arrowstate"), ("fish", "complete -c arrowstate")],
)
def test_a_script_has_each_command_and_option(capsys, shell, own):
    (commands,) = (action for action in make_parser()._actions if action.dest == "command")

    script = script_of(shell, capsys)

    assert own in script
    for name, parser in commands.choices.items():
        assert name in script
        options = [option for action in parser._actions for option in action.option_strings if option.startswith("--")]
        missing = [option for option in options if option.removeprefix("--" if shell == "fish" else "") not in script]
        assert missing == []


def test_with_json_the_script_is_a_field(capsys):
    assert main(["completion", "zsh", "--json"]) == 0

    found = json.loads(capsys.readouterr().out)
    assert found == {"shell": "zsh", "script": script_of("zsh", capsys).removesuffix("\n")}
