class IdentityError(Exception):
    """There is no usable token: whose, for what, and what to do about it."""
