"""Words for terminals: text of strangers made harmless, sizes and times made short. Pure."""

from __future__ import annotations

__all__ = ["ago", "amount", "duration", "one_line", "plain", "size"]


def plain(text: str) -> str:
    r"""Return the text with every harmful character spelled as an escape; line ends and tabs stay.

    A label or a compiler's message may come from another user's file, and a terminal obeys what it is sent.
    """
    return "".join(each if each in "\n\t" else _spelled(each) for each in text)


def one_line(text: str, limit: int = 80) -> str:
    """Return the text as one harmless line of at most ``limit`` characters."""
    line = "".join(_spelled(each) for each in text)
    return line if len(line) <= limit else line[: limit - 3] + "..."


def _spelled(character: str) -> str:
    # Not printable: controls, formats (the bidirectional overrides among them), surrogates, odd blanks, and
    # what has no meaning. Any of these can move the cursor, recolour, reorder or break what a terminal shows.
    return character if character.isprintable() else repr(character)[1:-1]


def duration(seconds: float | None) -> str:
    """Return a length of time for people; a dash where it is not known."""
    if seconds is None:
        return "-"
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min"


def ago(seconds: float) -> str:
    """Return how long ago something was, in one unit; what lies in the future (clocks differ) is now."""
    for unit, name in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= unit:
            return f"{int(seconds // unit)} {name}"
    return f"{int(max(0.0, seconds))} s"


def size(count: int | None) -> str:
    """Return a number of bytes for people, in powers of 1024; a dash where it is not known."""
    if count is None:
        return "-"
    value, unit = float(count), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB", "PiB"):
        if value < 1024:
            break
        value, unit = value / 1024, larger
    return f"{value:.0f} {unit}" if unit == "B" or value >= 100 else f"{value:.1f} {unit}"


def amount(count: int, one: str, many: str | None = None) -> str:
    """Return a count with its noun: ``1 process``, ``8 processes``."""
    return f"{count} {one if count == 1 else many or one + 's'}"
