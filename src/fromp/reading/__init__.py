"""One's own files, read within limits: nothing in them is executed, and what is damaged is an error that names it."""

LARGEST = 2**31  # bytes that a file or a folder of one's own may unpack to, unless one says otherwise
