"""Programs that make files of this project. Run from a checkout; no part of the wheel."""
