"""What goes wrong for reasons that the user can mend."""


class Problem(Exception):
    """Says what is missing and what to do about it."""
