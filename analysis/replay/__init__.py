"""Replay: how long a step takes when what it is made of takes another time."""
