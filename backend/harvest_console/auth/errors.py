"""Why the console refuses a request before anything reads it."""

from __future__ import annotations

from harvest.errors import ForbiddenError


class CrossSiteError(ForbiddenError):
    """A changing request that came from another site, or without this session's CSRF token."""

    code, slug = "HVT-213", "cross_site_request"


class HostRefusedError(ForbiddenError):
    """The console serves this machine only, and the request was made for another host name."""

    code, slug, status = "HVT-214", "host_refused", 421
