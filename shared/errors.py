"""The one exception whose text alone is shown to the user."""


class UserError(Exception):
    """Input that cannot be used: one line that names the thing and says what would be right.

    The command line prints the text without a traceback and exits with code 2.
    """
