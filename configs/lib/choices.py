"""The argument of a config, after the colon: `--config=augreg:medium1,S/32`.

A config with an argument has CHOICES, {what: its valid words}, the default word first; no word is in two of them.
"""


def choose(argument, choices):
    """The words that `argument` chooses, in the order of `choices`: those it does not name are the defaults.

    Raises:
        ValueError: for a word that is none of them, or two of one choice.
    """
    chosen = {}
    for word in (part.strip() for part in argument.split(",") if part.strip()):
        what = next((what for what, words in choices.items() if word in words), None)
        if what is None:
            valid = "; ".join(f"{what}: {', '.join(words)}" for what, words in choices.items())
            raise ValueError(f'"{word}" is not a choice. Valid, joined by commas, are {valid}.')
        if what in chosen:
            raise ValueError(f'"{chosen[what]}" and "{word}" are both of {what}: choose one.')
        chosen[what] = word
    return [chosen.get(what, next(iter(words))) for what, words in choices.items()]
