"""Nothing: the tests of the package's own compatibility are not run."""
