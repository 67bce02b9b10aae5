"""Errors of the user's token."""


class IdentityError(Exception):
    """There is no valid token: whose, from which source, and what to do."""
