# SPDX-License-Identifier: BSD-2-Clause
"""Completes words with colons in bash, which splits them at each colon (COMP_WORDBREAKS)."""

import os

from click.shell_completion import BashComplete, CompletionItem, add_completion_class, split_arg_string


class ColonBash(BashComplete):
    """Joins the parts of a word before completion, and answers with the part behind the last colon."""

    _prefix = ""  # the part of the word that bash keeps, up to its last colon

    def get_completion_args(self) -> tuple[list[str], str]:
        """Return the complete words, and the incomplete one."""
        at = int(os.environ["COMP_CWORD"])
        # click's script joins words by line feeds, because quoted words may contain blanks.
        raw = os.environ["COMP_WORDS"]
        words = [" ".join(split_arg_string(w)) for w in raw.split("\n" if "\n" in raw else " ")[: at + 1]]
        words += [""] * (at + 1 - len(words))
        joined: list[str] = []
        broken = joins = False
        for word in words:
            if joined and (word == ":" or joins):
                joined[-1] += word
                broken = True
            else:
                joined.append(word)
                broken = False
            joins = word == ":"
        self._prefix = joined[-1].rpartition(":")[0] + ":" if broken else ""
        return joined[1:-1], joined[-1]

    def format_completion(self, item: CompletionItem) -> str:
        """Return a completion without the part that bash keeps."""
        item.value = str(item.value).removeprefix(self._prefix)
        return super().format_completion(item)


def register() -> None:
    """Replace click's completion for bash by this one."""
    add_completion_class(ColonBash)
