"""Pages of HTML that need nothing outside themselves, in one look: templates, and data as addresses."""

import base64
from typing import Any

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined


def fill(template: str, package: str = "fromp.learn", **values: Any) -> str:
    """A package's template with these values, each of them escaped; `base.html` is the same for all packages."""
    loader = ChoiceLoader([PackageLoader(package), PackageLoader("fromp.learn")])
    environment = Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return environment.get_template(template).render(values)


def address(kind: str, data: bytes) -> str:
    """Data as an address that holds them."""
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"
