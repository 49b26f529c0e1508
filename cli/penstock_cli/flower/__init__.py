"""`penstock flower`: Flower against this fleet's broker, with options that suit a million items,
and closed to strangers."""
