"""A regulariser in the loops of other libraries; each module needs the library of its name, and imports it alone."""
