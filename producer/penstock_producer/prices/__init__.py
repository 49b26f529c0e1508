"""What tokens cost: by the operator's settings, else by the table that comes with this package,
else unknown."""
