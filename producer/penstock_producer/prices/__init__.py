"""What tokens cost: by the operator's settings, else by the table of this package, else unknown."""
