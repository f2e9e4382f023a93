"""Completion of words with colons, which bash takes for several."""

import os

from click.shell_completion import BashComplete, CompletionItem, add_completion_class, split_arg_string


class ColonBash(BashComplete):
    """bash breaks words at colons (COMP_WORDBREAKS): put them together, and answer with what follows the last."""

    _known = ""  # of the word, to the left of what bash wants completed

    def get_completion_args(self) -> tuple[list[str], str]:
        """The words before the one to be completed, and that."""
        at = int(os.environ["COMP_CWORD"])
        # click's script joins them by line feeds; what is quoted may hold blanks.
        raw = os.environ["COMP_WORDS"]
        words = [" ".join(split_arg_string(w)) for w in raw.split("\n" if "\n" in raw else " ")[: at + 1]]
        words += [""] * (at + 1 - len(words))
        glued: list[str] = []
        broken = joins = False
        for word in words:
            if glued and (word == ":" or joins):
                glued[-1] += word
                broken = True
            else:
                glued.append(word)
                broken = False
            joins = word == ":"
        self._known = glued[-1].rpartition(":")[0] + ":" if broken else ""
        return glued[1:-1], glued[-1]

    def format_completion(self, item: CompletionItem) -> str:
        """As bash wants it."""
        item.value = str(item.value).removeprefix(self._known)
        return super().format_completion(item)


def register() -> None:
    """Have click use it."""
    add_completion_class(ColonBash)
