"""The argument of a config, after the colon: `--config=augreg:medium1,S/32`.

A config with an argument has CHOICES, {what: its valid words}, the default word first; no word is in two of them. Where
some of them mean nothing beside every word of another, it has ONLY, {what: the word that it belongs to}.
"""


def choose(argument, choices, only=None):
    """The words that `argument` chooses, in the order of `choices`: those it does not name are the defaults.

    Raises:
        ValueError: for an unknown word, two words of one choice, or one without the word that it needs.
    """
    named = {}
    for word in (part.strip() for part in argument.split(",") if part.strip()):
        what = next((what for what, words in choices.items() if word in words), None)
        if what is None:
            valid = "; ".join(f"{what}: {', '.join(words)}" for what, words in choices.items())
            raise ValueError(f'"{word}" is not a choice. Valid, joined by commas, are {valid}.')
        if what in named:
            raise ValueError(f'"{named[what]}" and "{word}" are both of {what}: choose one.')
        named[what] = word
    chosen = {what: named.get(what, next(iter(words))) for what, words in choices.items()}
    for what, needed in (only or {}).items():
        if what in named and needed not in chosen.values():
            other = next(chosen[other] for other, words in choices.items() if needed in words)
            raise ValueError(
                f'"{named[what]}" is for {needed} alone, not for {other}: leave it out, or choose {needed}.'
            )
    return list(chosen.values())
