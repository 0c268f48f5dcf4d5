"""Small tools without knowledge of selection: checks, files, optional packages, collectives."""
