"""Packages for systems, tried in roots of their own by `make deb-test`, not by `make test`."""
