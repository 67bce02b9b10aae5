class CatalogError(Exception):
    """The catalog cannot do what was asked: what is wrong, where, and what to do."""
