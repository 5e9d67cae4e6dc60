"""Nothing: the tests of the package's admin are not run."""


class DBTaskResultAdmin:
    """A name that the suite imports."""
