"""FROMP with some of its five approximations undone: appendix B, one file for each that is more than a line."""
