"""Spot notices by asking the cloud's metadata service; see watch.py.

Off unless `spot_notices` names the cloud."""
